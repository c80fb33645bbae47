/* The C interface of Weft: operations on plain pointers, models, and the AMD simulator.
 *
 * Every function that can fail returns a weft_status; weft_error() then has one sentence that names
 * the thing, the value and what to do. Nothing prints, throws or aborts. Results are written
 * through the last parameters, and only on success. Strings are UTF-8; those that come out belong
 * to the library and live as long as the object they came from. Structures that go in begin with
 * their own size, so that later versions can add members at the end: fill them with WEFT_INIT or
 * set `size` to sizeof. Objects may be used by one thread at a time, different objects by different
 * threads; tokenizers by several at once.
 *
 * WEFT_VERSION_MAJOR counts incompatible changes and is the N of libweft.so.N; WEFT_VERSION_MINOR
 * counts additions. */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_VERSION_MAJOR 1
#define WEFT_VERSION_MINOR 2

#define WEFT_API __attribute__((visibility("default")))

/* Major * 1000 + minor of the library that is loaded. */
WEFT_API int32_t weft_version(void);

/* ---- Errors ---- */

typedef int32_t weft_status;
enum {
  WEFT_OK = 0,
  WEFT_ERROR_USAGE = 2,  /* an argument is wrong */
  WEFT_ERROR_INPUT = 3,  /* a file or text cannot be used */
  WEFT_ERROR_DEVICE = 4, /* a device, its driver or its memory failed */
  WEFT_CANCELLED = 5     /* the caller asked for it */
};

/* The sentence of the calling thread's last failure; "" before the first. Valid until its next
 * failure. */
WEFT_API const char* weft_error(void);

/* ---- Devices ---- */

typedef struct weft_device weft_device;

typedef struct weft_device_info {
  const char* id;      /* as weft_device_open() takes it: "cuda:0", "hip:0", "sim:gfx942" */
  const char* name;    /* as its driver names it */
  const char* target;  /* what its kernels are compiled for: "sm_90a", "gfx942" */
  const char* missing; /* "" or why there is none of this kind here; the rest is then empty */
  int32_t units;       /* multiprocessors or compute units */
  int32_t keeps_time;  /* 0: a simulator, which counts instead */
  uint64_t memory;     /* bytes */
  double bandwidth;    /* the vendor's figure, bytes per second; 0: not known */
} weft_device_info;

/* What there is beside the CPU, and of what is not there why: writes up to `capacity` entries,
 * valid until the thread's next call, and how many there are. */
WEFT_API weft_status weft_devices(weft_device_info* out, size_t capacity, size_t* count);

/* "cuda", "cuda:1", "hip", "sim:gfx942". Errors: usage (no such name), device (it is not here;
 * why). */
WEFT_API weft_status weft_device_open(const char* id, weft_device** out);
WEFT_API void weft_device_close(weft_device* device);
WEFT_API weft_status weft_device_describe(const weft_device* device, weft_device_info* out);

/* The stream of this object's own work: a cudaStream_t or hipStream_t. */
WEFT_API void* weft_device_stream(weft_device* device);

/* Memory of the device, aligned to 256 bytes, of any contents. Copies run in the order of the
 * device's own stream; the host's memory may be used again when they return. */
WEFT_API weft_status weft_allocate(weft_device* device, size_t bytes, void** out);
WEFT_API weft_status weft_free(weft_device* device, void* data);
WEFT_API weft_status weft_upload(weft_device* device, void* to, const void* from, size_t bytes);
WEFT_API weft_status weft_download(weft_device* device, void* to, const void* from, size_t bytes);
/* Waits for all work. What a kernel did wrong comes out here at the latest. */
WEFT_API weft_status weft_synchronize(weft_device* device);

/* ---- Operations ---- */

enum { /* formats */
       WEFT_F32 = 0,
       WEFT_BF16 = 1,
       WEFT_F16 = 2,
       WEFT_E4M3FN = 3,   /* OCP fp8: Hopper, gfx950 */
       WEFT_E4M3FNUZ = 4, /* gfx942's */
       WEFT_MXFP4 = 5     /* OCP microscaling e2m1: of experts alone, see weft_moe_args */
};
enum { /* how many numbers share a scale; number = code * scale */
       WEFT_SCALE_NONE = 0,
       WEFT_SCALE_TENSOR = 1,
       WEFT_SCALE_ROW = 2,
       WEFT_SCALE_BLOCK = 3 /* 128 numbers of a row; of weights [n, k] 128 x 128 */
};
enum {                       /* flags */
       WEFT_ACCUMULATE = 1,  /* add to what `out` holds (f32) */
       WEFT_CONSTANT_B = 2,  /* nothing in flight writes b or its scales: they are weights */
       WEFT_MN_MAJOR = 4,    /* a is [k, m] and b is [k, n], row-major (gemm_fp8_blockwise) */
       WEFT_SIGMOID = 8,     /* weights are sigmoids, not a softmax (route) */
       WEFT_RENORMALISE = 16 /* and divided by the sum of the chosen ones' (route) */
};

/* A row-major matrix in the memory of the device that runs the operation. */
typedef struct weft_matrix {
  void* data;     /* aligned to 16 bytes; null: absent */
  int64_t stride; /* elements from one row to the next; a multiple of 16 bytes */
  int32_t format;
  int32_t reserved; /* 0 */
} weft_matrix;

/* f32. The scale of row r (of weights: of rows 128 r to 128 r + 127) and block b along the row is
 * data[r * row_stride + b * block_stride]. */
typedef struct weft_scales {
  float* data;
  int64_t row_stride;
  int64_t block_stride;
} weft_scales;

/* Memory that an operation uses beside its operands. Its first WEFT_COUNTER_BYTES are zero before
 * its first use, and every operation leaves them so; one operation at a time uses it. */
typedef struct weft_workspace {
  void* data; /* aligned to 256 bytes */
  size_t bytes;
} weft_workspace;
#define WEFT_COUNTER_BYTES 65536

/* One structure for all products: out[m, n] (+)= sum over k of a[m, k] b[n, k], sums in f32,
 * rounded once. weft_gemm_bf16            a, b bf16; out bf16 or f32; n and k multiples of 8
 *   weft_gemm_fp8_blockwise   a, b fp8, scales of blocks; out bf16; n a multiple of 8, k of 128
 *   weft_gemm_skinny          m up to 32; bf16, or fp8 with scales of the tensor, rows or blocks;
 * out bf16 or f32; n a multiple of 8, k of 16 */
typedef struct weft_gemm_args {
  size_t size; /* of this structure */
  int64_t m, n, k;
  weft_matrix a;
  weft_matrix b;
  weft_matrix out;
  weft_scales a_scale;
  weft_scales b_scale;
  weft_workspace workspace;
  int32_t scaling; /* WEFT_SCALE_*; gemm_skinny only */
  int32_t flags;
  /* gemm_fp8_blockwise: rows of a in blocks of 128 with a b for each group, as a mixture of experts
   * has them. b is [groups * n, k], group after group, its scales [groups * ceil(n / 128), k /
   * 128]; m is a multiple of 128. 0: one b for all rows. */
  int64_t groups;
  const int32_t* group_of; /* [m / 128] where the operation runs: each block's group; -1: it has
                            * none, and its rows of out are not written */
} weft_gemm_args;

/* Operations on rows, with a result that is rounded (bf16, f16) or quantised (fp8: the scale of a
 * tensor is read; of rows and blocks it is computed as max(largest |v|, 1e-10) / largest of the
 * format, and written). weft_rmsnorm_quant   h = x + residual, written back to residual (when it
 * has data); y = h / sqrt(mean(h^2) + epsilon) * weight weft_swiglu_quant    y = silu(x) * up; x is
 * the gate */
typedef struct weft_rows_args {
  size_t size; /* of this structure */
  int64_t rows;
  int64_t columns;      /* of the result; a multiple of 8 */
  weft_matrix x;        /* [rows, columns], bf16 or f16 */
  weft_matrix up;       /* swiglu_quant: the same format */
  weft_matrix residual; /* rmsnorm_quant: the same format, or absent */
  const void* weight;   /* rmsnorm_quant: [columns], the same format */
  weft_matrix out;      /* fp8, or the format of x */
  weft_scales scales;
  weft_workspace workspace;
  int32_t scaling; /* WEFT_SCALE_* */
  float epsilon;
} weft_rows_args;

/* Attention of a decode step over latent rows (DeepSeek's MLA, absorbed): a position has one key of
 * 576 numbers for all heads, [latent: 512 | turned by RoPE: 64], whose first 512 are the value as
 * well. out = softmax(scale * q.k) v, in f32. */
typedef struct weft_mla_args {
  size_t size;           /* of this structure */
  int64_t batch;         /* sequences, 1 to 2048 */
  int64_t tokens;        /* query tokens of each, which are its last ones: 1 to 4 */
  int64_t heads;         /* 1 to 128 */
  weft_matrix q;         /* [batch * tokens, heads * 576], bf16 */
  const void* cache;     /* [blocks][block_rows] rows: bf16, or 656 bytes with the latent in e4m3fn:
                          * codes, four f32 scales, the turned part in bf16 */
  int64_t blocks;        /* of the cache: a sequence's each, or pages */
  int64_t block_rows;    /* rows that follow a sequence's to the next multiple of 64 are there */
  const int32_t* tables; /* [batch][table_stride]: the pages, of 64 rows, of a sequence; null:
                          * sequence i is block i */
  int64_t table_stride;
  const int32_t* lengths; /* [batch]: keys of a sequence, its query tokens' included */
  weft_matrix out;        /* [batch * tokens, heads * 512], bf16 or f32 */
  weft_workspace workspace;
  float scale;
  int32_t cache_format; /* WEFT_BF16 or WEFT_E4M3FN */
} weft_mla_args;

/* A mixture's draw: of each row the experts of the largest logits, of equal ones those of lower
 * number, in ascending order, and their weights: the softmax over all logits or, with WEFT_SIGMOID,
 * sigmoids; with WEFT_RENORMALISE divided by their sum; times `scale`. NaN is the largest logit. */
typedef struct weft_route_args {
  size_t size; /* of this structure */
  int64_t rows;
  int64_t experts; /* 1 to 4096 */
  int64_t chosen;  /* of a row */
  int64_t groups;  /* of equal size, one behind the other; 0 or 1: none; at most 32, on AMD 64 */
  int64_t kept_groups; /* with groups: the best so many are chosen from. A group is as good as its
                        * best expert or, with a correction, the sum of its best two */
  weft_matrix logits;  /* [rows, experts], f32; of any stride and alignment */
  const float* correction; /* [experts], with WEFT_SIGMOID: chosen are the experts of the largest
                            * sigmoid + correction; weights are without it. Null: none */
  int32_t* ids;            /* [rows, chosen]: written */
  float* weights;          /* [rows, chosen]: written */
  float scale;             /* of all weights: 1 leaves them as they are */
  int32_t flags;           /* WEFT_SIGMOID, WEFT_RENORMALISE */
} weft_route_args;

/* What belongs to a matrix [n, k] of every expert; all zero where there is nothing to say. */
typedef struct weft_experts {
  const float* scales;  /* of e4m3fn: [ceil(n / 128)][ceil(k / 128)] of the first expert, number =
                         * code * scale; otherwise null */
  int64_t scales_pitch; /* from its first scale to the next expert's; 0: one behind the other */
  const void* bias;     /* [experts][n], in a's format; null: none */
  int64_t pitch; /* elements from the first number of an expert's matrix to that of the next one's,
                  * a multiple of 16 bytes; 0: n strides. Of MXFP4, bytes; 0: n * k * 17 / 32 */
} weft_experts;

/* Rows through the experts that each has drawn: out[r] = sum over s of weights[r, s] down(f(gate
 * a[r], up a[r])), of expert ids[r, s], summed in f32; what lies between the products is rounded to
 * a's format. f(g, u) is silu(g) u or, with a limit, gpt-oss's: min(g, limit) sigmoid(1.702 min(g,
 * limit)) (clamp(u, -limit, limit) + 1).
 *
 * All three matrices of the experts are alike:
 *   in a's format, which is bf16, on AMD f16 too;
 *   in e4m3fn, with scales of 128 x 128; a is bf16;
 *   in MXFP4, of which no stride is read; a is bf16. Of each expert n * k / 2 bytes of codes, row
 *   by row, in a byte that of the even element in the low four bits; then n * k / 32 bytes of
 *   scales, row by row, e8m0, one for 32 elements of a row. A checkpoint of gpt-oss has both so
 *   (blocks and scales), in rows of gate and of up by turns. */
typedef struct weft_moe_args {
  size_t size; /* of this structure */
  int64_t rows;
  int64_t chosen;     /* experts of a row */
  int64_t experts;    /* at most 4096 */
  int64_t hidden;     /* numbers of a row; a multiple of 8, of 32 with MXFP4 */
  int64_t inner;      /* and of what an expert makes of it; likewise */
  weft_matrix a;      /* [rows, hidden] */
  const int32_t* ids; /* [rows, chosen], in a row all different, in any order, aligned to 16 bytes.
                       * Others than 0 to experts - 1 the CPU refuses; what a GPU, where nothing
                       * waits for them, does is undefined */
  const float* weights; /* [rows, chosen], aligned to 16 bytes */
  weft_matrix gate;     /* [inner, hidden] of the first expert, the others' behind it */
  weft_matrix up;       /* likewise, of the same stride */
  weft_matrix down;     /* [hidden, inner], likewise */
  weft_matrix out;      /* [rows, hidden], f32 or in a's format */
  weft_workspace workspace;
  weft_experts gate_experts;
  weft_experts up_experts;
  weft_experts down_experts;
  float limit;      /* of MXFP4; 0: none */
  int32_t reserved; /* 0 */
} weft_moe_args;

/* A mixture of experts with its router, in f16: of each row p = softmax(router x) over all experts,
 * of which the `chosen` largest are drawn; out = the sum of p_e down_e^T (silu(gate_e^T x) * up_e^T
 * x) over these, in ascending order, and of the shared expert's with weight 1. p is not
 * renormalised. Every result on the way is rounded to f16. */
typedef struct weft_moe_layer_args {
  size_t size; /* of this structure */
  int64_t rows;
  int64_t hidden;          /* numbers of a row; a multiple of 8 */
  int64_t inner;           /* and of what an expert makes of it; a multiple of 8 */
  int64_t experts;         /* that are drawn from; 96 at most, the shared one included */
  int64_t chosen;          /* of a row */
  weft_matrix x;           /* [rows, hidden] */
  weft_matrix router;      /* [experts, hidden]; absent where ids are there */
  const weft_matrix* gate; /* of each expert [hidden, inner], the shared one's last: a list of the
                            * host's, read by the call */
  const weft_matrix* up;   /* likewise */
  const weft_matrix* down; /* likewise [inner, hidden] */
  const int32_t* ids;      /* [rows, chosen, and the shared one]: what rows have drawn, ascending,
                            * aligned to 16 bytes; null: what the router gives */
  const float* weights;    /* with ids: likewise, the shared one's 1 */
  weft_matrix out;         /* [rows, hidden] */
  weft_workspace workspace;
  int32_t shared;   /* 1: there is an expert behind the others that all rows have */
  int32_t reserved; /* 0 */
} weft_moe_layer_args;

/* A decode step of multi-head latent attention with its projections, in bf16: of each sequence row
 * `prefill` of the cache becomes kv_down x, and y = o softmax(q . keys / sqrt(192)) values with q =
 * q_up (q_down x); keys and values are kv_up's products with the cache's rows, which are [latent:
 * 512 | key before RoPE: 64]. Keys and queries are turned by halves, by `angles`. */
typedef struct weft_mla_layer_args {
  size_t size;         /* of this structure */
  int64_t batch;       /* sequences, 1 to 2048 */
  int64_t dim;         /* of the model, a multiple of 8 */
  int64_t q_rank;      /* of the queries' latent, a multiple of 8 */
  int64_t heads;       /* 1 to 128 */
  int64_t prefill;     /* rows that each sequence's cache has */
  int64_t capacity;    /* rows that each has room for: more, at most 16384 */
  weft_matrix x;       /* [batch, dim] */
  weft_matrix q_down;  /* [q_rank, dim] */
  weft_matrix q_up;    /* [heads * 192, q_rank]: of a head 128, then the 64 that RoPE turns */
  weft_matrix kv_down; /* [576, dim] */
  weft_matrix kv_up;   /* [heads * 256, 512]: of a head 128 of keys, then 128 of values */
  weft_matrix o;       /* [dim, heads * 128] */
  void* cache;         /* [batch][capacity][576], bf16 */
  const void* angles;  /* [prefill + 1][64], bf16: of each position 32 cosines, then 32 sines */
  weft_matrix out;     /* [batch, dim] */
  weft_workspace workspace;
  int32_t flags;    /* WEFT_CONSTANT_B: nothing in flight writes the weights */
  int32_t reserved; /* 0 */
} weft_mla_layer_args;

/* Writes to[positions * 64] in the host's memory: the angles of positions 0, 1, ... of base 10000,
 * where position, frequency, their product, cosine and sine are each rounded to bf16. */
WEFT_API weft_status weft_mla_layer_angles(int64_t positions, uint16_t* to);

/* Each operation starts its work on `stream` of the device and returns; it neither allocates nor
 * waits and can be captured in a graph. A null device is the CPU: it computes in the calling
 * thread. A null stream is the device's default stream. Errors: usage (which condition on the
 * operands does not hold), device (no kernel for them there, and why; a launch failed). */
WEFT_API weft_status weft_gemm_bf16(const weft_gemm_args* args, weft_device* device, void* stream);
WEFT_API weft_status weft_gemm_fp8_blockwise(const weft_gemm_args* args, weft_device* device,
                                             void* stream);
WEFT_API weft_status weft_gemm_skinny(const weft_gemm_args* args, weft_device* device,
                                      void* stream);
WEFT_API weft_status weft_rmsnorm_quant(const weft_rows_args* args, weft_device* device,
                                        void* stream);
WEFT_API weft_status weft_swiglu_quant(const weft_rows_args* args, weft_device* device,
                                       void* stream);
WEFT_API weft_status weft_mla_decode(const weft_mla_args* args, weft_device* device, void* stream);
WEFT_API weft_status weft_route(const weft_route_args* args, weft_device* device, void* stream);
WEFT_API weft_status weft_moe(const weft_moe_args* args, weft_device* device, void* stream);
WEFT_API weft_status weft_moe_layer(const weft_moe_layer_args* args, weft_device* device,
                                    void* stream);
WEFT_API weft_status weft_mla_layer(const weft_mla_layer_args* args, weft_device* device,
                                    void* stream);

/* An operation by name ("gemm_bf16"), `args` being its structure: the bytes of workspace that it
 * wants there (the one in `args` is not looked at); and how its launch would be cut and by which
 * rule, as a sentence, valid until the thread's next call. */
WEFT_API weft_status weft_workspace_bytes(const char* operation, const void* args,
                                          weft_device* device, size_t* bytes);
WEFT_API weft_status weft_plan(const char* operation, const void* args, weft_device* device,
                               const char** plan);

/* Runs of an operation: seconds of each, as a graph with cold caches, into seconds[runs]. Error
 * (device): the device keeps no time. */
WEFT_API weft_status weft_time(const char* operation, const void* args, weft_device* device,
                               int32_t runs, double* seconds);

/* The code object (an ELF file) of an operation's AMD kernels for "gfx942" or "gfx950". */
WEFT_API weft_status weft_code_object(const char* operation, const char* target, const void** data,
                                      size_t* bytes);

/* A launch of such a kernel as an operation makes it for `args` on a device "recorded:...".
 * Pointers in `args` may be any numbers: none is read. Writes up to `capacity` launches and how
 * many there are; valid until the thread's next call. */
typedef struct weft_launch {
  const char* kernel;
  uint32_t grid[3]; /* workgroups */
  uint32_t block[3];
  uint32_t lds; /* bytes beside those that the kernel declares */
  uint32_t reserved;
  const void* arguments; /* packed, as the kernel takes them */
  size_t argument_bytes;
} weft_launch;
WEFT_API weft_status weft_launches(const char* operation, const void* args, weft_device* device,
                                   weft_launch* out, size_t capacity, size_t* count);

/* ---- Tokenizers ---- */

typedef struct weft_tokenizer weft_tokenizer;

/* Reads directory/tokenizer.json. */
WEFT_API weft_status weft_tokenizer_open(const char* directory, weft_tokenizer** out);
WEFT_API void weft_tokenizer_close(weft_tokenizer* tokenizer);
/* The highest id + 1. */
WEFT_API int64_t weft_tokenizer_size(const weft_tokenizer* tokenizer);
/* Writes up to `capacity` ids of text[bytes], and how many there are. Error (input): not UTF-8. */
WEFT_API weft_status weft_encode(const weft_tokenizer* tokenizer, const char* text, size_t bytes,
                                 int32_t add_special, int32_t* ids, size_t capacity, size_t* count);
/* Writes up to `capacity` bytes of the text of ids[count], and how many there are; no zero follows.
 */
WEFT_API weft_status weft_decode(const weft_tokenizer* tokenizer, const int32_t* ids, size_t count,
                                 int32_t skip_special, char* text, size_t capacity, size_t* bytes);

/* Turns ids that come one by one into text of whole characters, cut before the first of `stops`. */
typedef struct weft_stream_decoder weft_stream_decoder;
/* The tokenizer must outlive it. */
WEFT_API weft_status weft_stream_decoder_open(const weft_tokenizer* tokenizer,
                                              const char* const* stops, size_t count,
                                              weft_stream_decoder** out);
WEFT_API void weft_stream_decoder_close(weft_stream_decoder* decoder);
/* What `id` adds, up to where a stop string may begin; `stopped`: one was seen. `text` is valid
 * until the next call. A negative id: the end of the stream, which gives what was held back. */
WEFT_API weft_status weft_stream_decoder_push(weft_stream_decoder* decoder, int32_t id,
                                              const char** text, size_t* bytes, int32_t* stopped);

/* ---- Models ---- */

typedef struct weft_engine weft_engine;

typedef struct weft_engine_options {
  size_t size;         /* of this structure */
  const char* device;  /* "cpu", "cuda", "cuda:1"; null: "cpu" */
  int32_t workers;     /* threads, or SMs; 0: all that this process may use */
  int32_t sequences;   /* decoded at once: 0 or 1; on cuda up to 8 */
  int64_t context;     /* positions of a sequence's KV cache; 0: the model's */
  int32_t kv;          /* WEFT_BF16, WEFT_F32; -1: by the model's size */
  int32_t activations; /* prefill's products: WEFT_BF16, WEFT_F32; -1: by the model's size */
  int32_t compressed;  /* weights read in 12 bits without loss: 0, 1; -1: where that is faster */
  int32_t reserved;    /* 0 */
} weft_engine_options;
#define WEFT_ENGINE_OPTIONS_INIT \
  { sizeof(weft_engine_options), NULL, 0, 0, 0, -1, -1, -1, 0 }

/* Loads a Hugging Face directory. `options` may be null. Errors: input (what of which file), usage
 * (options that the model cannot have), device. */
WEFT_API weft_status weft_engine_open(const char* directory, const weft_engine_options* options,
                                      weft_engine** out);
WEFT_API void weft_engine_close(weft_engine* engine);

typedef struct weft_engine_info {
  int64_t vocabulary;
  int64_t layers;
  int64_t hidden;
  int64_t context;
  int32_t sequences;
  int32_t workers;
} weft_engine_info;
WEFT_API weft_status weft_engine_describe(const weft_engine* engine, weft_engine_info* out);

typedef struct weft_tokens {
  const int32_t* ids;
  size_t count;
} weft_tokens;

/* Gets each token as it is drawn, before the next step begins. 0: that sequence ends here. */
typedef int32_t (*weft_on_token)(void* user, size_t sequence, int32_t token);

typedef struct weft_generate_options {
  size_t size;              /* of this structure */
  int64_t max_tokens;       /* new tokens of each prompt at most */
  float temperature;        /* 0: greedy */
  int32_t top_k;            /* 0: off */
  float top_p;              /* 1: off */
  float min_p;              /* 0: off */
  float repetition_penalty; /* 1: off */
  int32_t ignore_eos;       /* 1: the end-of-sequence token is one like any other */
  uint64_t seed;            /* sequence i draws with seed + i */
  weft_on_token on_token;   /* may be null */
  void* user;               /* its first argument */
  const int32_t* cancel; /* may be null; any thread may make it not 0: the call ends after its step
                            of the continuation or, on cpu, of the prompt */
} weft_generate_options;
#define WEFT_GENERATE_OPTIONS_INIT \
  { sizeof(weft_generate_options), 256, 0.0f, 0, 1.0f, 0.0f, 1.0f, 0, 0, NULL, NULL, NULL }

enum { WEFT_STOP_EOS = 0, WEFT_STOP_LENGTH = 1, WEFT_STOP_CONTEXT = 2, WEFT_STOP_CALLER = 3 };
typedef struct weft_generation {
  const int32_t* ids; /* new ones, without the end-of-sequence token */
  size_t count;
  int32_t stop; /* WEFT_STOP_* */
  int32_t reserved;
  double prefill_seconds; /* to the first new token */
  double decode_seconds;  /* all further steps together */
} weft_generation;

/* Continues prompts[count], as many at once as the engine decodes, into out[count], which is valid
 * until the engine's next call. `options` may be null. Errors: input (an empty prompt, an id that
 * is none, a prompt longer than the context), WEFT_CANCELLED. */
WEFT_API weft_status weft_generate(weft_engine* engine, const weft_tokens* prompts, size_t count,
                                   const weft_generate_options* options, weft_generation* out);

/* Natural log-probabilities of ids[1..] given those before, into logprobs[count - 1], and the
 * logits after the last one into logits[vocabulary]; either may be null. `cancel` as in
 * weft_generate_options. */
WEFT_API weft_status weft_score(weft_engine* engine, const int32_t* ids, size_t count,
                                const int32_t* cancel, double* logprobs, float* logits);

/* ---- The AMD simulator: code objects by anyone, on no GPU ---- */

typedef struct weft_sim weft_sim;
typedef struct weft_sim_kernel weft_sim_kernel;

/* "gfx942" or "gfx950". Error (device): this build or this processor cannot. */
WEFT_API weft_status weft_sim_open(const char* target, weft_sim** out);
WEFT_API void weft_sim_close(weft_sim* sim);
/* Zeroed; the address is the host's too, so that the host reads and writes it directly. */
WEFT_API weft_status weft_sim_allocate(weft_sim* sim, size_t bytes, void** out);
WEFT_API weft_status weft_sim_free(weft_sim* sim, void* data);
/* Loads a code object (an ELF file, as a compiler writes it for the target) and finds a kernel in
 * it; `name` may be null where it has one. Its bytes may go afterwards. */
WEFT_API weft_status weft_sim_load(weft_sim* sim, const void* code, size_t bytes, const char* name,
                                   weft_sim_kernel** out);
WEFT_API void weft_sim_kernel_close(weft_sim_kernel* kernel);

typedef struct weft_sim_kernel_info {
  const char* name;
  uint32_t argument_bytes; /* of the explicit arguments */
  uint32_t arguments;      /* how many explicit ones */
  uint32_t vgprs, agprs, sgprs;
  uint32_t vgpr_spills, sgpr_spills;
  uint32_t lds_bytes;     /* declared; a launch may add to it */
  uint32_t scratch_bytes; /* of a lane */
  uint32_t max_threads;   /* of a workgroup */
} weft_sim_kernel_info;
WEFT_API weft_status weft_sim_kernel_describe(const weft_sim_kernel* kernel,
                                              weft_sim_kernel_info* out);
/* Where explicit argument `index` lies, and its kind: "by_value", "global_buffer". */
WEFT_API weft_status weft_sim_kernel_argument(const weft_sim_kernel* kernel, uint32_t index,
                                              uint32_t* offset, uint32_t* bytes, const char** kind);

typedef struct weft_sim_launch_args {
  size_t size; /* of this structure */
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t lds;     /* bytes beside those that the kernel declares */
  int32_t sanitize; /* look for uninitialised reads, missing waits, races */
  uint64_t seed; /* 0: in order, no caches; else a random order, with caches that keep old copies */
  const void* arguments;
  size_t argument_bytes;
} weft_sim_launch_args;

typedef struct weft_sim_count {
  const char* name;
  double value;
} weft_sim_count;

/* What a launch did wrong, a sentence each, and what it counted; valid until the kernel's next
 * launch. `bound`: the least seconds that the counts allow, by `bound_by`; never a measurement. */
typedef struct weft_sim_report {
  const char* const* findings;
  size_t finding_count;
  const weft_sim_count* counters;
  size_t counter_count;
  double bound;
  const char* bound_by;
} weft_sim_report;
/* Runs to its end. Errors (usage): a launch that the device refuses. */
WEFT_API weft_status weft_sim_run(weft_sim_kernel* kernel, const weft_sim_launch_args* args,
                                  weft_sim_report* out);

/* ---- PyTorch ---- */

/* Gives the operators torch.ops.weft.*, which python/weft/ops.py declares, their kernels, in the
 * PyTorch (2.8 or later) that this process has loaded. `gpu`: what its "cuda" devices are, "cuda"
 * or "hip". */
WEFT_API weft_status weft_torch_register(const char* gpu);

#ifdef __cplusplus
}
#endif

#endif
