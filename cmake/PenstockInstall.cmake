# Rules for `cmake --install` and the package files for find_package(Penstock).
include(CMakePackageConfigHelpers)
find_package(Liburing)
find_package(Libaio)
get_property(modules GLOBAL PROPERTY PENSTOCK_MODULES)
install(TARGETS ${modules} EXPORT PenstockTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/penstock DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT PenstockTargets NAMESPACE penstock:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Penstock)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/PenstockConfig.cmake.in
  ${PROJECT_BINARY_DIR}/PenstockConfig.cmake INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Penstock)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/PenstockConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/PenstockConfig.cmake ${PROJECT_BINARY_DIR}/PenstockConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindJsonCppLibrary.cmake ${PROJECT_SOURCE_DIR}/cmake/FindLibaio.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindLiburing.cmake ${PROJECT_SOURCE_DIR}/cmake/FindTlExpected.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Penstock)

# The C interface for pkg-config, wherever the prefix is moved.
file(RELATIVE_PATH prefix_of_pkgconfig /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(${PROJECT_SOURCE_DIR}/cmake/penstock.pc.in ${PROJECT_BINARY_DIR}/penstock.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/penstock.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
