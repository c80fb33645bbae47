# `cmake --install`: the command, the library with its headers, and the package that
# find_package(weft) reads. tests/consumer/ builds a project on it.
include(CMakePackageConfigHelpers)

set(WEFT_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/weft)

# Headers that need a dependency (Highway, nlohmann-json, CUDA), are for one GPU's kernels or serve the
# tests are for the library's own sources and stay behind.
foreach(room IN LISTS WEFT_ROOMS)
  install(DIRECTORY ${room} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/weft
    FILES_MATCHING PATTERN "*.h"
    PATTERN "*-inl.h" EXCLUDE PATTERN "json.h" EXCLUDE PATTERN "fields.h" EXCLUDE
    PATTERN "tokenizer" EXCLUDE
    PATTERN "test_*.h" EXCLUDE PATTERN "prefill_trial.h" EXCLUDE
    PATTERN "hopper*" EXCLUDE PATTERN "cdna*" EXCLUDE)
endforeach()

install(TARGETS weft EXPORT weftTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET weft_command)
  install(TARGETS weft_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

install(EXPORT weftTargets NAMESPACE weft:: DESTINATION ${WEFT_PACKAGE_DIR})
configure_package_config_file(cmake/weftConfig.cmake.in ${CMAKE_BINARY_DIR}/weftConfig.cmake
  INSTALL_DESTINATION ${WEFT_PACKAGE_DIR})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/weftConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${CMAKE_BINARY_DIR}/weftConfig.cmake ${CMAKE_BINARY_DIR}/weftConfigVersion.cmake
  cmake/FindPCRE2.cmake cmake/Findutf8proc.cmake
  DESTINATION ${WEFT_PACKAGE_DIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The C interface: libweft.so and its header; weft::c for find_package(weft).
if(TARGET weft_shared)
  install(TARGETS weft_shared EXPORT weftTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(FILES include/weft/weft.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/weft)
endif()
