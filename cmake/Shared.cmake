# libweft.so: the C interface (include/weft/weft.h) over the library, and over the simulator where it is
# built. Only weft_* comes out; but for glibc everything is inside.
if(WEFT_SANITIZE)
  return()
endif()
file(STRINGS include/weft/weft.h major REGEX "^#define WEFT_VERSION_MAJOR ")
string(REGEX REPLACE ".* " "" major ${major})

file(GLOB capi_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/capi/*.cc)
list(FILTER capi_sources EXCLUDE REGEX "_test\\.cc$")
add_library(weft_shared SHARED ${capi_sources})
add_library(weft::c ALIAS weft_shared)
set_target_properties(weft_shared PROPERTIES UNITY_BUILD OFF  # what is C's uses both namespaces whole
  OUTPUT_NAME weft EXPORT_NAME c SOVERSION ${major}
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
  LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/weft.map)
target_include_directories(weft_shared PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(weft_shared PRIVATE
  $<BUILD_INTERFACE:weft> $<BUILD_INTERFACE:weft_flags> $<BUILD_INTERFACE:weft_dependencies>)
if(TARGET weft_sim)
  target_link_libraries(weft_shared PRIVATE $<BUILD_INTERFACE:weft_sim>)
  target_compile_definitions(weft_shared PRIVATE WEFT_WITH_SIM=1)
endif()
target_link_options(weft_shared PRIVATE
  -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/weft.map -Wl,--gc-sections)
