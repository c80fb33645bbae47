# Says at the end of configuring what this build has and what it leaves out.
set(weft_built "cpu")
set(weft_left_out)

find_program(WEFT_NVCC nvcc HINTS /usr/local/cuda/bin)
find_program(WEFT_CLANG_22 clang++-22)
mark_as_advanced(WEFT_NVCC WEFT_CLANG_22)
list(APPEND weft_left_out "hopper (this version has no CUDA kernels, nvcc: ${WEFT_NVCC})")
list(APPEND weft_left_out "cdna (this version has no AMD kernels, clang++-22: ${WEFT_CLANG_22})")

if(NOT TARGET weft_command)
  list(APPEND weft_left_out "the command (no sources)")
endif()
if(NOT WEFT_TESTS)
  list(APPEND weft_left_out "tests (WEFT_TESTS is OFF)")
elseif(NOT GTest_FOUND)
  list(APPEND weft_left_out "tests (GoogleTest not found, scripts/setup test installs it)")
endif()

message(STATUS "Weft ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, for: ${weft_built}")
foreach(line IN LISTS weft_left_out)
  string(REGEX REPLACE "[A-Z_0-9]+-NOTFOUND" "not found" line ${line})
  message(STATUS "  left out: ${line}")
endforeach()
