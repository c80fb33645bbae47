# Debian packages the project stands on. Linked statically where Debian has the archive.
find_package(Threads REQUIRED)
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_path(HWY_INCLUDE_DIR hwy/highway.h REQUIRED)
find_path(PCRE2_INCLUDE_DIR pcre2.h REQUIRED)
find_library(PCRE2_LIBRARY libpcre2-8.a REQUIRED)
find_path(UTF8PROC_INCLUDE_DIR utf8proc.h REQUIRED)
find_library(UTF8PROC_LIBRARY libutf8proc.a REQUIRED)

add_library(weft_dependencies INTERFACE)
target_include_directories(weft_dependencies SYSTEM INTERFACE
  ${HWY_INCLUDE_DIR} ${PCRE2_INCLUDE_DIR} ${UTF8PROC_INCLUDE_DIR})
target_compile_definitions(weft_dependencies INTERFACE PCRE2_CODE_UNIT_WIDTH=8 UTF8PROC_STATIC)
target_link_libraries(weft_dependencies INTERFACE
  fmt::fmt-header-only nlohmann_json::nlohmann_json ${PCRE2_LIBRARY} ${UTF8PROC_LIBRARY} Threads::Threads)
