// The resident kernel of mixtures of experts: the parts of decode.hip with kExperts.
#define WEFT_DECODE decode_experts
#define WEFT_EXPERTS
#include "engine/cdna/decode.hip"
