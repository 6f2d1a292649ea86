# What an installation has beside the executable and the two libraries.
include(CMakePackageConfigHelpers)
set(WSYNC_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/wsync)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/wsyncConfig.cmake.in ${PROJECT_BINARY_DIR}/wsyncConfig.cmake
  INSTALL_DESTINATION ${WSYNC_PACKAGE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/wsyncConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/wsyncConfig.cmake ${PROJECT_BINARY_DIR}/wsyncConfigVersion.cmake
  DESTINATION ${WSYNC_PACKAGE_DIR})
install(EXPORT wsyncTargets NAMESPACE wsync:: DESTINATION ${WSYNC_PACKAGE_DIR})
install(EXPORT wsyncStaticTargets NAMESPACE wsync:: DESTINATION ${WSYNC_PACKAGE_DIR})
install(FILES ${PROJECT_SOURCE_DIR}/shared/c_api/wsync/types.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/wsync)
install(FILES ${PROJECT_SOURCE_DIR}/deploy/config/sidecar.yaml ${PROJECT_SOURCE_DIR}/deploy/config/train.yaml
  ${PROJECT_SOURCE_DIR}/deploy/config/trainer.yaml
  DESTINATION ${CMAKE_INSTALL_DATADIR}/wsync/config)
install(FILES ${PROJECT_SOURCE_DIR}/deploy/prometheus/alerts.yml ${PROJECT_SOURCE_DIR}/deploy/prometheus/prometheus.yml
  ${PROJECT_SOURCE_DIR}/deploy/grafana/wsync.json
  DESTINATION ${CMAKE_INSTALL_DATADIR}/wsync/monitoring)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/deploy/cli/schema DESTINATION ${CMAKE_INSTALL_DATADIR}/wsync
  FILES_MATCHING PATTERN "*.json")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
