# The list of operations that `weft check` and `weft bench` know: every folder of ops/ with an
# op.h, whose trial.cc describes it. Written as an include file, because a static library drops
# objects that only register themselves.
file(GLOB operations CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/ops/*/op.h)
set(list "")
foreach(operation IN LISTS operations)
  get_filename_component(folder ${operation} DIRECTORY)
  get_filename_component(name ${folder} NAME)
  string(APPEND list "WEFT_OPERATION(${name})\n")
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/ops/operations.inc CONTENT "${list}")
set_source_files_properties(${CMAKE_SOURCE_DIR}/ops/harness/registry.cc PROPERTIES
  INCLUDE_DIRECTORIES ${CMAKE_BINARY_DIR}/generated)
