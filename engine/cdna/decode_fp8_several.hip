// decode_fp8.hip of two to eight sequences.
#define WEFT_DECODE decode_fp8_several
#define WEFT_FP8
#define WEFT_SEVERAL
#include "engine/cdna/decode.hip"
