// Compiles the file named by WEFT_SIM_VECTOR twice, for AVX2 and for AVX-512, into namespaces of
// those names: plain loops over 64 lanes that the compiler turns into vector code. Every other
// header must be included before, so that no code outside those namespaces uses instructions that
// the machine may lack.
//
// No include guard: a file that includes this is compiled once more each time.
#ifndef WEFT_SIM_VECTOR
#error "define WEFT_SIM_VECTOR as the file to compile, then include this"
#endif

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi,bmi2,lzcnt,popcnt"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,lzcnt,popcnt")
#endif
#define WEFT_SIM_ISA avx2
#define WEFT_SIM_AVX512 0
#include WEFT_SIM_VECTOR
#undef WEFT_SIM_ISA
#undef WEFT_SIM_AVX512
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(                                                                   \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx2,fma,f16c,bmi,bmi2," \
                          "lzcnt,popcnt"))),                                                    \
    apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target( \
    "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx2,fma,f16c,bmi,bmi2,lzcnt,popcnt,prefer-vector-width=512")
#endif
#define WEFT_SIM_ISA avx512
#define WEFT_SIM_AVX512 1
#include WEFT_SIM_VECTOR
#undef WEFT_SIM_ISA
#undef WEFT_SIM_AVX512
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

/// The variant of NAME for this machine.
#define WEFT_SIM_PICK(NAME) \
  (::weft::cpu::current_isa() >= ::weft::cpu::Isa::avx512 ? avx512::NAME : avx2::NAME)
