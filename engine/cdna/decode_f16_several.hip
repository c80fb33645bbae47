// decode_f16.hip of two to eight sequences.
#define WEFT_DECODE decode_f16_several
#define WEFT_F16
#define WEFT_SEVERAL
#include "engine/cdna/decode.hip"
