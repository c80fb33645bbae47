// The resident kernel of models in f16: the parts of decode.hip with that form alone.
#define WEFT_DECODE decode_f16
#define WEFT_F16
#include "engine/cdna/decode.hip"
