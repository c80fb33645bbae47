# AMD kernels: every ops/<op>/cdna.hip, and every engine/cdna/<name>.hip, becomes one code object per
# target, plain in <build>/cdna/<op>.<target>.co (llvm-objdump-22 -d reads it) and embedded in the library
# (arch/cdna/embedded.h). The compiler needs no ROCm: no headers, no device libraries, no bundler.
set(WEFT_CDNA_TARGETS gfx942 gfx950)
set(WEFT_CDNA_DIR ${CMAKE_BINARY_DIR}/cdna)

find_program(WEFT_CLANG_22 clang++-22)
find_program(WEFT_LLD_22 ld.lld-22)
mark_as_advanced(WEFT_CLANG_22 WEFT_LLD_22)

file(GLOB cdna_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/ops/*/cdna.hip
  ${CMAKE_SOURCE_DIR}/engine/cdna/*.hip)
set(WEFT_CDNA_LEFT_OUT)  # why there are no AMD kernels, for the summary
if(WEFT_SANITIZE AND NOT WEFT_SIMULATOR)  # nothing would run them
  set(WEFT_CDNA_LEFT_OUT "this is the sanitized build, with no simulator")
elseif(NOT WEFT_CLANG_22 OR NOT WEFT_LLD_22)
  set(WEFT_CDNA_LEFT_OUT
    "clang++-22: ${WEFT_CLANG_22}, ld.lld-22: ${WEFT_LLD_22}, scripts/setup amd installs them")
endif()
if(WEFT_CDNA_LEFT_OUT)
  set(cdna_sources)
endif()

set(cdna_list "")
set(cdna_assembly "")
set(cdna_objects)
foreach(source IN LISTS cdna_sources)
  get_filename_component(name ${source} NAME_WE)
  get_filename_component(folder ${source} DIRECTORY)
  file(RELATIVE_PATH relative ${PROJECT_SOURCE_DIR} ${source})
  if(name STREQUAL cdna)
    get_filename_component(name ${folder} NAME)
  endif()
  # One part's constants are not kept in registers for all the others of an interpreter of codes. What
  # is to be unrolled says so, and vectors are what is written as such: more would only be compiled.
  set(options)
  if(name MATCHES "^decode")
    set(options -mllvm -disable-machine-licm -mllvm -unroll-threshold=100 -fno-vectorize
      -fno-slp-vectorize)
  endif()
  foreach(target IN LISTS WEFT_CDNA_TARGETS)
    set(object ${WEFT_CDNA_DIR}/${name}.${target}.co)
    # Line tables let the simulator name source lines; -fuse-cuid=none makes builds repeatable. No path
    # of this machine is in the command, so that ccache knows a kernel wherever the tree lies; it would not
    # bring back the list of headers, which is made apart.
    set(compile ${WEFT_CLANG_22} -x hip --cuda-device-only --offload-arch=${target} -nogpuinc -nogpulib
      --no-gpu-bundle-output -fuse-cuid=none -std=c++20 -O3 ${options} -gline-tables-only
      -fdebug-compilation-dir=. -Wall -Wextra -Werror)
    add_custom_command(OUTPUT ${object}
      COMMAND ${compile} -E -I ${PROJECT_SOURCE_DIR} -Xclang -dependency-file -Xclang ${object}.d
        -Xclang -MT -Xclang ${object} ${source} -o /dev/null
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${compile} -I . -c ${relative} -o ${object}
      DEPENDS ${source} DEPFILE ${object}.d WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
      COMMENT "Compiling ${name} for ${target}" VERBATIM)
    list(APPEND cdna_objects ${object})
    string(APPEND cdna_list "WEFT_CODE_OBJECT(${name}, ${target})\n")
    string(APPEND cdna_assembly
      ".balign 4096\n.global weft_cdna_${name}_${target}\n.hidden weft_cdna_${name}_${target}\n"
      "weft_cdna_${name}_${target}:\n.incbin \"${object}\"\n"
      ".global weft_cdna_${name}_${target}_end\n.hidden weft_cdna_${name}_${target}_end\n"
      "weft_cdna_${name}_${target}_end:\n")
  endforeach()
endforeach()

file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/arch/cdna/embedded.inc CONTENT "${cdna_list}")
set_source_files_properties(${CMAKE_SOURCE_DIR}/arch/cdna/embedded.cc PROPERTIES
  INCLUDE_DIRECTORIES ${CMAKE_BINARY_DIR}/generated)
if(cdna_objects)
  enable_language(ASM)
  file(CONFIGURE OUTPUT ${WEFT_CDNA_DIR}/embedded.s
    CONTENT ".section .rodata\n${cdna_assembly}.section .note.GNU-stack,\"\",@progbits\n")
  set_source_files_properties(${WEFT_CDNA_DIR}/embedded.s PROPERTIES OBJECT_DEPENDS "${cdna_objects}")
  # Its own library, so that the project's compile flags stay with the project's languages.
  add_library(weft_cdna_code OBJECT ${WEFT_CDNA_DIR}/embedded.s)
  target_sources(weft PRIVATE $<TARGET_OBJECTS:weft_cdna_code>)
endif()
add_custom_target(cdna_code DEPENDS ${cdna_objects})
