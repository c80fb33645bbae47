// The resident kernel of mixtures whose experts are in MXFP4: decode_experts.hip with that form.
#define WEFT_DECODE decode_mx
#define WEFT_MX
#include "engine/cdna/decode.hip"
