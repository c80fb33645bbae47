# libFuzzer programs: one for each ROOM/**/NAME_fuzz.cc, run briefly as the test NAME_fuzz (label
# 'fuzz') from the inputs in tests/fuzz/NAME/, if there are any. They need clang and its fuzzer runtime, whatever
# compiler builds the rest: the test build_fuzzers configures the project a second time, for clang
# and with WEFT_FUZZ_TARGETS, and builds nothing there but the fuzzers and the sources they use.
option(WEFT_FUZZ "Run the fuzzers in the tests" ON)
option(WEFT_FUZZ_TARGETS "Define the fuzzers as targets; the compiler must be clang" OFF)
set(WEFT_FUZZ_SECONDS 5 CACHE STRING "How long each fuzzer runs in the tests")

set(weft_fuzzers)
foreach(room IN LISTS WEFT_ROOMS ITEMS serve)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${room}/*_fuzz.cc)
  list(APPEND weft_fuzzers ${sources})
endforeach()

if(WEFT_FUZZ_TARGETS)
  # The rooms that read files from outside.
  set(fuzzed_sources ${weft_sources} ${serve_sources})
  list(FILTER fuzzed_sources INCLUDE REGEX "^${PROJECT_SOURCE_DIR}/(base/|model/|arch/cdna/code_object|serve/(protocol|template|grammar|tools)/)")
  add_library(weft_fuzzed OBJECT EXCLUDE_FROM_ALL ${fuzzed_sources})
  weft_unite_folders(weft_fuzzed)
  target_include_directories(weft_fuzzed PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_options(weft_fuzzed PUBLIC
    -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize=null,object-size,vptr -fno-sanitize-recover=all)
  target_link_libraries(weft_fuzzed PUBLIC weft_dependencies)
  add_custom_target(fuzzers)
  foreach(source IN LISTS weft_fuzzers)
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} EXCLUDE_FROM_ALL ${source})
    target_link_libraries(${name} PRIVATE weft_fuzzed)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer,address,undefined)
    add_dependencies(fuzzers ${name})
  endforeach()
  return()
endif()

if(NOT WEFT_FUZZ OR NOT WEFT_TESTS OR WEFT_SANITIZE)
  return()
endif()
set(fuzz_dir ${CMAKE_BINARY_DIR}/fuzz)
find_program(WEFT_FUZZ_CXX clang++)
mark_as_advanced(WEFT_FUZZ_CXX)
set(probe_failure "no clang++")
if(WEFT_FUZZ_CXX)
  # The runtime is a package of its own, so only linking a program tells.
  file(WRITE ${fuzz_dir}/probe.cc
    "extern \"C\" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }\n")
  execute_process(
    COMMAND ${WEFT_FUZZ_CXX} -fsanitize=fuzzer,address,undefined probe.cc -o probe
    WORKING_DIRECTORY ${fuzz_dir}
    RESULT_VARIABLE probe_failure OUTPUT_QUIET ERROR_QUIET)
endif()
if(NOT probe_failure EQUAL 0)
  message(STATUS "  left out: fuzzers (clang++ with its fuzzer runtime not found, scripts/setup test installs it)")
  return()
endif()

add_test(NAME build_fuzzers
  COMMAND ${CMAKE_CTEST_COMMAND} --build-and-test ${PROJECT_SOURCE_DIR} ${fuzz_dir}/build
    --build-generator ${CMAKE_GENERATOR} --build-target fuzzers --build-noclean
    --build-options -DCMAKE_CXX_COMPILER=${WEFT_FUZZ_CXX} "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -gline-tables-only"
      -DWEFT_TESTS=OFF -DWEFT_FUZZ_TARGETS=ON
      -DCMAKE_UNITY_BUILD=ON)
set_tests_properties(build_fuzzers PROPERTIES LABELS fuzz FIXTURES_SETUP fuzzers COST 150)
foreach(source IN LISTS weft_fuzzers)
  get_filename_component(name ${source} NAME_WE)
  string(REGEX REPLACE "_fuzz$" "" seeds ${name})
  set(inputs ${fuzz_dir}/${seeds})  # what this build's runs found goes here; the seeds stay as they are
  file(MAKE_DIRECTORY ${inputs})
  if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/tests/fuzz/${seeds})
    list(APPEND inputs ${PROJECT_SOURCE_DIR}/tests/fuzz/${seeds})
  endif()
  add_test(NAME ${name}
    COMMAND ${fuzz_dir}/build/${name} -max_total_time=${WEFT_FUZZ_SECONDS} -timeout=10
      -rss_limit_mb=2048 -max_len=4096 -verbosity=0 -print_final_stats=1
      -artifact_prefix=${fuzz_dir}/ ${inputs})
  set_tests_properties(${name} PROPERTIES LABELS fuzz FIXTURES_REQUIRED fuzzers)
endforeach()
