# CUDA kernels without an NVIDIA GPU (sim/hopper/): an interpreter of PTX, and a CUDA runtime that launches
# kernels on it. `weft-ptx` is the command with that runtime. Where it is built, the library's fat binaries
# have their kernels' PTX beside what a GPU runs, so that they are compiled once.
option(WEFT_PTX_SIMULATOR "Build weft-ptx, the command whose CUDA kernels run on the CPU, where nvcc is found" ON)
set(WEFT_PTX_LEFT_OUT)
if(NOT WEFT_PTX_SIMULATOR)
  set(WEFT_PTX_LEFT_OUT "WEFT_PTX_SIMULATOR is OFF")
elseif(NOT WEFT_TESTS)
  set(WEFT_PTX_LEFT_OUT "WEFT_TESTS is OFF")
elseif(NOT WEFT_WITH_CUDA)
  set(WEFT_PTX_LEFT_OUT "${WEFT_CUDA_LEFT_OUT}")
else()
  find_library(WEFT_ZSTD NAMES libzstd.a)  # with which nvcc compresses PTX
  mark_as_advanced(WEFT_ZSTD)
  if(NOT WEFT_ZSTD)
    set(WEFT_PTX_LEFT_OUT "libzstd.a not found")
  endif()
endif()

file(GLOB ptx_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/sim/hopper/*.cc)
set(weft_tests_ptx ${ptx_sources})
list(FILTER weft_tests_ptx INCLUDE REGEX "/ptx[a-z_]*_test\\.cc$")
list(FILTER ptx_sources EXCLUDE REGEX "_test\\.cc$")
set(ptx_runtime ${ptx_sources})
list(FILTER ptx_runtime INCLUDE REGEX "/runtime[a-z_]*\\.cc$")
list(FILTER ptx_sources EXCLUDE REGEX "/runtime[a-z_]*\\.cc$")

# The interpreter needs nothing of NVIDIA's. A result is what its instruction says: no fused steps.
add_library(weft_ptx_sim STATIC EXCLUDE_FROM_ALL ${ptx_sources})
target_link_libraries(weft_ptx_sim PUBLIC weft PRIVATE weft_flags weft_dependencies)
target_compile_options(weft_ptx_sim PRIVATE -ffp-contract=off -march=x86-64-v3)

if(WEFT_PTX_LEFT_OUT)
  return()
endif()

set_target_properties(weft PROPERTIES CUDA_ARCHITECTURES 90a)

# Lets a target's kernels, those of the library too, run on the interpreter: our runtime comes before CUDA's,
# so that the linker takes nothing of that.
function(weft_simulate_cuda target)
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES 90a-virtual LINKER_LANGUAGE CXX)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:weft_ptx_runtime>)
  target_link_libraries(${target} PRIVATE weft_ptx_sim weft weft_flags weft_dependencies ${WEFT_ZSTD})
endfunction()

add_library(weft_ptx_runtime OBJECT EXCLUDE_FROM_ALL ${ptx_runtime})
target_include_directories(weft_ptx_runtime PRIVATE ${PROJECT_SOURCE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(weft_ptx_runtime PRIVATE weft_flags weft_dependencies)

add_executable(weft_ptx $<TARGET_OBJECTS:weft_command>)
set_target_properties(weft_ptx PROPERTIES OUTPUT_NAME weft-ptx)
target_link_libraries(weft_ptx PRIVATE weft_serve)
weft_simulate_cuda(weft_ptx)
if(TARGET weft_sim)
  target_link_libraries(weft_ptx PRIVATE weft_sim)
endif()
