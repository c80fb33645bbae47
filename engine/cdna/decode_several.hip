// The resident kernel of two to eight sequences: the parts of decode.hip with kSeveral.
#define WEFT_DECODE decode_several
#define WEFT_SEVERAL
#include "engine/cdna/decode.hip"
