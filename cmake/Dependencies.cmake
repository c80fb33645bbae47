# Debian packages the project stands on (scripts/setup installs them). Those that are not headers
# alone are linked statically.
find_package(Threads REQUIRED)
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(PCRE2 REQUIRED)
find_package(utf8proc REQUIRED)
find_path(HWY_INCLUDE_DIR hwy/highway.h REQUIRED)
mark_as_advanced(HWY_INCLUDE_DIR)

# What is linked, and so what a user of libweft links too.
set(WEFT_LINKED_DEPENDENCIES PCRE2::8bit utf8proc::utf8proc Threads::Threads)

add_library(weft_dependencies INTERFACE)
target_include_directories(weft_dependencies SYSTEM INTERFACE ${HWY_INCLUDE_DIR})
target_link_libraries(weft_dependencies INTERFACE
  nlohmann_json::nlohmann_json ${WEFT_LINKED_DEPENDENCIES})
# fmt is no static library in Debian. Its functions are compiled once, in base/fmt.cc, which is written for
# version 9 (Debian 12, Ubuntu 24.04): inline in every file they cost a third of the build. Any other
# version is used that way.
if(fmt_VERSION VERSION_GREATER_EQUAL 9 AND fmt_VERSION VERSION_LESS 10)
  target_include_directories(weft_dependencies SYSTEM INTERFACE
    $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
else()
  target_link_libraries(weft_dependencies INTERFACE fmt::fmt-header-only)
endif()
