# The simulator (sim/): a library of its own, because it stands on LLVM 22, whose MC libraries decode
# AMD code. Without them the command has no `sim:` devices. Also the same simulator as a shared
# library that answers HIP's module API, libweft-amdhip64.so.
set(WEFT_SIM_LEFT_OUT)
find_program(WEFT_LLVM_CONFIG_22 llvm-config-22)
mark_as_advanced(WEFT_LLVM_CONFIG_22)
if(NOT WEFT_SIMULATOR)
  set(WEFT_SIM_LEFT_OUT "WEFT_SIMULATOR is OFF")
elseif(NOT WEFT_LLVM_CONFIG_22)
  set(WEFT_SIM_LEFT_OUT "llvm-config-22 not found")
else()
  execute_process(COMMAND ${WEFT_LLVM_CONFIG_22} --link-static --libfiles
      amdgpudisassembler amdgpudesc amdgpuinfo amdgpuutils debuginfodwarf object mc
    OUTPUT_VARIABLE llvm_libraries OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE llvm_failure ERROR_QUIET)
  execute_process(COMMAND ${WEFT_LLVM_CONFIG_22} --includedir
    OUTPUT_VARIABLE llvm_include OUTPUT_STRIP_TRAILING_WHITESPACE)
  # What LLVM itself is built on.
  find_library(WEFT_ZLIB NAMES libz.a)
  find_library(WEFT_ZSTD NAMES libzstd.a)
  mark_as_advanced(WEFT_ZLIB WEFT_ZSTD)
  if(NOT llvm_failure EQUAL 0 OR NOT EXISTS ${llvm_include}/llvm/MC/TargetRegistry.h)
    set(WEFT_SIM_LEFT_OUT "LLVM 22's headers or static libraries not found")
  elseif(NOT WEFT_ZLIB OR NOT WEFT_ZSTD)
    set(WEFT_SIM_LEFT_OUT "libz.a: ${WEFT_ZLIB}, libzstd.a: ${WEFT_ZSTD}")
  endif()
endif()
if(WEFT_SIM_LEFT_OUT)
  return()
endif()
separate_arguments(llvm_libraries)

file(GLOB sim_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/sim/*.cc)
set(weft_tests_sim ${sim_sources})
list(FILTER weft_tests_sim INCLUDE REGEX "_test\\.cc$")
list(FILTER sim_sources EXCLUDE REGEX "_(test|fuzz)\\.cc$")
list(REMOVE_ITEM sim_sources ${CMAKE_SOURCE_DIR}/sim/hip_library.cc)

# Each with a model of what it tests, in the same words as others (CMAKE_UNITY_BUILD).
set(isa_tests ${weft_tests_sim})
list(FILTER isa_tests INCLUDE REGEX "/isa_[a-z]*_test\\.cc$")
set_source_files_properties(${isa_tests} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

add_library(weft_sim STATIC ${sim_sources})
target_link_libraries(weft_sim
  PUBLIC weft
  PRIVATE weft_flags weft_dependencies ${llvm_libraries} ${WEFT_ZLIB} ${WEFT_ZSTD} ${CMAKE_DL_LIBS})
# A lane's result is what its instruction says: no fused steps that the program does not have. g++ 12
# sees uninitialised variables in its own AVX-512 header (GCC bug 105593), and overlaps in strings
# (105651).
target_compile_options(weft_sim PRIVATE -ffp-contract=off -fno-trapping-math
  $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized -Wno-maybe-uninitialized -Wno-restrict>)
set_source_files_properties(${CMAKE_SOURCE_DIR}/sim/disassembler.cc PROPERTIES
  COMPILE_OPTIONS "-fno-rtti;-isystem${llvm_include}")
set_target_properties(weft_sim PROPERTIES POSITION_INDEPENDENT_CODE ON)

# Only HIP's names come out.
add_library(weft_sim_hip SHARED sim/hip_library.cc)
set_target_properties(weft_sim_hip PROPERTIES
  OUTPUT_NAME weft-amdhip64 LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/hip.map)
target_link_libraries(weft_sim_hip PRIVATE weft_sim weft_flags weft_dependencies)
# hipGetProcAddress knows all of them, so it brings all of them.
target_link_options(weft_sim_hip PRIVATE -Wl,-u,hipGetProcAddress
  -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/hip.map)

# HIP kernels that the tests run: written as anyone writes them, compiled for both targets; the corpus
# also with less optimisation, as name-O0 and the like.
set(WEFT_SIM_KERNELS ${CMAKE_BINARY_DIR}/sim)
set(sim_kernel_objects)
if(NOT WEFT_CDNA_LEFT_OUT)
  file(GLOB sim_kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/sim/testdata/*.hip)
  foreach(source IN LISTS sim_kernels)
    get_filename_component(name ${source} NAME_WE)
    set(variants ${name}:O3)
    if(name STREQUAL corpus)
      set(variants ${name}-O0:O0 ${name}-O1:O1 ${name}-O3:O3)
    endif()
    foreach(variant IN LISTS variants)
      string(REPLACE : ";" variant ${variant})
      list(GET variant 0 result)
      list(GET variant 1 level)
      foreach(target IN LISTS WEFT_CDNA_TARGETS)
        set(object ${WEFT_SIM_KERNELS}/${result}.${target}.co)
        add_custom_command(OUTPUT ${object}
          COMMAND ${WEFT_CLANG_22} -x hip --cuda-device-only --offload-arch=${target} -nogpuinc
            -nogpulib --no-gpu-bundle-output -fuse-cuid=none -std=c++20 -${level} -gline-tables-only
            -mprintf-kind=buffered -ffile-prefix-map=${PROJECT_SOURCE_DIR}/= -Wall -Wextra -Werror
            -I ${PROJECT_SOURCE_DIR} ${source} -o ${object}
          DEPENDS ${source} ${CMAKE_SOURCE_DIR}/sim/testdata/hip.h VERBATIM
          COMMENT "Compiling sim/testdata/${name}.hip for ${target}, -${level}")
        list(APPEND sim_kernel_objects ${object})
      endforeach()
    endforeach()
  endforeach()
endif()
add_custom_target(sim_kernels DEPENDS ${sim_kernel_objects})
