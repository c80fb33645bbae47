/* A matrix product in bf16 by the C interface, and a model's continuation of a prompt:
 *
 *     product_c [DEVICE [DIRECTORY]]       cpu, cuda, hip, sim:gfx942; a Hugging Face directory
 *
 * Shows all that an operation asks of its caller: operands by address and stride in the device's memory, a
 * workspace, a stream, errors as values. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft/weft.h>

enum { M = 64, N = 128, K = 256 };

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, weft_error());
  return 1;
}

/* Memory of the device, or of the host where there is none, with a copy of `from` (zeros if it is null). */
static void* place(weft_device* device, const void* from, size_t bytes) {
  void* at = NULL;
  void* zeros = calloc(1, bytes + 256);
  if (zeros == NULL) {
    return NULL;
  }
  if (device == NULL) {
    if (from != NULL) {
      memcpy(zeros, from, bytes);
    }
    return zeros; /* for as long as the program runs */
  }
  if (weft_allocate(device, bytes, &at) != WEFT_OK ||
      weft_upload(device, at, from != NULL ? from : zeros, bytes) != WEFT_OK) {
    at = NULL;
  }
  free(zeros);
  return at;
}

/* Ones times twos: every element of the product is 2 k. */
static int multiply(const char* name) {
  static uint16_t ones[M * K], twos[N * K];
  static float result[M * N];
  weft_device* device = NULL;
  weft_gemm_args args = {0};
  const char* plan = NULL;
  size_t i;
  for (i = 0; i < M * K; ++i) {
    ones[i] = 0x3f80; /* 1 in bf16 */
  }
  for (i = 0; i < N * K; ++i) {
    twos[i] = 0x4000;
  }
  if (strcmp(name, "cpu") != 0 && weft_device_open(name, &device) != WEFT_OK) {
    return failed(name);
  }
  args.size = sizeof args;
  args.m = M;
  args.n = N;
  args.k = K;
  args.a.data = place(device, ones, sizeof ones);
  args.a.stride = K;
  args.a.format = WEFT_BF16;
  args.b.data = place(device, twos, sizeof twos);
  args.b.stride = K;
  args.b.format = WEFT_BF16;
  args.out.data = place(device, NULL, sizeof result);
  args.out.stride = N;
  args.out.format = WEFT_F32;
  if (args.a.data == NULL || args.b.data == NULL || args.out.data == NULL) {
    return failed("memory");
  }
  if (weft_workspace_bytes("gemm_bf16", &args, device, &args.workspace.bytes) != WEFT_OK) {
    return failed("workspace");
  }
  if (args.workspace.bytes > 0) {
    /* zeros, aligned to 256 bytes: the host's memory was made larger by that */
    char* at = place(device, NULL, args.workspace.bytes);
    args.workspace.data = device != NULL ? at : at + (256 - (uintptr_t)at % 256) % 256;
  }
  if (weft_plan("gemm_bf16", &args, device, &plan) != WEFT_OK) {
    return failed("plan");
  }
  if (weft_gemm_bf16(&args, device, weft_device_stream(device)) != WEFT_OK) {
    return failed("gemm_bf16");
  }
  if (device == NULL) {
    memcpy(result, args.out.data, sizeof result);
  } else if (weft_download(device, result, args.out.data, sizeof result) != WEFT_OK) {
    return failed("download");
  }
  for (i = 0; i < M * N; ++i) {
    if (result[i] != 2.0f * K) {
      fprintf(stderr, "element %zu is %g and should be %d\n", i, (double)result[i], 2 * K);
      return 1;
    }
  }
  printf("%d x %d x %d on %s (%s): every element is %g\n", M, N, K, name, plan, (double)result[0]);
  weft_device_close(device);
  return 0;
}

static int32_t print_token(void* user, size_t sequence, int32_t token) {
  const char* text = NULL;
  size_t bytes = 0;
  int32_t stopped = 0;
  (void)sequence;
  if (weft_stream_decoder_push(user, token, &text, &bytes, &stopped) != WEFT_OK) {
    return 0;
  }
  fwrite(text, 1, bytes, stdout);
  return !stopped;
}

static int continue_prompt(const char* device, const char* directory) {
  static const char kPrompt[] = "def add(a, b):";
  weft_engine_options options = WEFT_ENGINE_OPTIONS_INIT;
  weft_generate_options generate = WEFT_GENERATE_OPTIONS_INIT;
  weft_engine* engine = NULL;
  weft_tokenizer* tokenizer = NULL;
  weft_stream_decoder* decoder = NULL;
  weft_tokens prompt;
  weft_generation out;
  int32_t ids[64];
  options.device = device;
  generate.max_tokens = 16;
  prompt.ids = ids;
  if (weft_tokenizer_open(directory, &tokenizer) != WEFT_OK ||
      weft_encode(tokenizer, kPrompt, sizeof kPrompt - 1, 1, ids, 64, &prompt.count) != WEFT_OK ||
      weft_stream_decoder_open(tokenizer, NULL, 0, &decoder) != WEFT_OK ||
      weft_engine_open(directory, &options, &engine) != WEFT_OK) {
    return failed(directory);
  }
  generate.on_token = print_token;
  generate.user = decoder;
  printf("%s", kPrompt);
  if (weft_generate(engine, &prompt, 1, &generate, &out) != WEFT_OK) {
    return failed("generate");
  }
  print_token(decoder, 0, -1);
  printf("\n%zu tokens\n", out.count);
  weft_stream_decoder_close(decoder);
  weft_tokenizer_close(tokenizer);
  weft_engine_close(engine);
  return 0;
}

int main(int argc, char** argv) {
  const char* device = argc > 1 ? argv[1] : "cpu";
  if (weft_version() / 1000 != WEFT_VERSION_MAJOR) {
    fprintf(stderr, "libweft.so has version %d of the interface\n", (int)(weft_version() / 1000));
    return 1;
  }
  if (multiply(device) != 0) {
    return 1;
  }
  return argc > 2 ? continue_prompt(device, argv[2]) : 0;
}
