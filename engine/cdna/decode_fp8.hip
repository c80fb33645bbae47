// The resident kernel of models with weights in e4m3fn: the parts of decode.hip with more forms.
#define WEFT_DECODE decode_fp8
#define WEFT_FP8
#include "engine/cdna/decode.hip"
