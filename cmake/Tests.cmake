# One GoogleTest program per room. Tests whose name contains 'Slow' run outside the 'quick' label.
find_package(GTest REQUIRED)

function(weft_add_tests room)
  set(target test_${room})
  add_executable(${target} ${ARGN})
  target_link_libraries(${target} PRIVATE weft weft_flags weft_dependencies GTest::gtest GTest::gtest_main)
  target_compile_definitions(${target} PRIVATE WEFT_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  add_test(NAME ${room} COMMAND ${target} --gtest_filter=-*Slow*)
  set_tests_properties(${room} PROPERTIES LABELS quick)
  add_test(NAME ${room}_slow COMMAND ${target} --gtest_filter=*Slow*)
  set_tests_properties(${room}_slow PROPERTIES LABELS slow)
endfunction()

foreach(room IN LISTS WEFT_ROOMS)
  if(weft_tests_${room})
    weft_add_tests(${room} ${weft_tests_${room}})
  endif()
endforeach()
