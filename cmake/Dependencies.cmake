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
  fmt::fmt-header-only nlohmann_json::nlohmann_json ${WEFT_LINKED_DEPENDENCIES})
