// The resident kernel of attention over latent rows, with experts or without: decode_experts.hip
// with that attention.
#define WEFT_DECODE decode_latents
#define WEFT_LATENTS
#include "engine/cdna/decode.hip"
