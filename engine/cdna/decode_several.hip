// The resident kernel of up to eight sequences.
#define WEFT_SEVERAL
#include "engine/cdna/decode.hip"
