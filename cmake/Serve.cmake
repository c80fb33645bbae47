# The room serve/: a library of the command's alone (libweft is models and operations). Boost's headers serve
# one file, serve/http/server.cc.
find_path(BOOST_INCLUDE_DIR boost/beast.hpp REQUIRED)
mark_as_advanced(BOOST_INCLUDE_DIR)

file(GLOB_RECURSE serve_sources CONFIGURE_DEPENDS serve/*.cc)
set(weft_tests_serve ${serve_sources})
list(FILTER weft_tests_serve INCLUDE REGEX "_test\\.cc$")
list(FILTER serve_sources EXCLUDE REGEX "_(test|fuzz)\\.cc$")
add_library(weft_serve STATIC ${serve_sources})
weft_unite_folders(weft_serve)
target_include_directories(weft_serve SYSTEM PRIVATE ${BOOST_INCLUDE_DIR})
target_link_libraries(weft_serve PUBLIC weft PRIVATE weft_flags weft_dependencies)

# The page at / is part of the program.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/serve/page/index.html)
file(READ serve/page/index.html page)
configure_file(serve/page/page.cc.in ${CMAKE_BINARY_DIR}/generated/serve/page.cc @ONLY)
target_sources(weft_serve PRIVATE ${CMAKE_BINARY_DIR}/generated/serve/page.cc)
