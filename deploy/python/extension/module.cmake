# wsync_python_module(TARGET COMPONENT [OPTION OF nanobind_add_module...]): the extension module, compiled for the Python and with
# the nanobind that the calling folder has found. COMPONENT is what `cmake --install` names to put it into a wheel.
set(wsync_python_sources calls.cc dlpack.cc engine.cc known_tensors.cc memory.cc module.cc polled_engine.cc reader.cc trainer.cc
  trainer_handle.cc weight_directory.cc)
list(TRANSFORM wsync_python_sources PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
set(wsync_python_symbols ${CMAKE_CURRENT_LIST_DIR}/entry.map)

function(wsync_python_module target component)
  nanobind_add_module(${target} NB_STATIC NOMINSIZE ${ARGN} ${wsync_python_sources})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME core LINK_DEPENDS ${wsync_python_symbols})
  target_link_libraries(${target} PRIVATE wsync_warnings wsync::trainer_plugin wsync::engine wsync::weights)
  # nodelete: as for the C libraries.
  target_compile_definitions(${target} PRIVATE WSYNC_VERSION="${PROJECT_VERSION}")
  target_link_options(${target} PRIVATE
    -Wl,-z,nodelete -Wl,--exclude-libs,ALL -Wl,--version-script=${wsync_python_symbols})
  # nanobind's headers are not held to the warnings of this tree.
  target_include_directories(${target} SYSTEM PRIVATE ${NB_DIR}/include ${Python_INCLUDE_DIRS})

  # What deploy/python/CMakeLists.txt takes into the wheel. No part of an ordinary installation.
  set(folder wsync/_native)
  install(TARGETS ${target} LIBRARY DESTINATION ${folder} COMPONENT ${component} EXCLUDE_FROM_ALL)
  install(TARGETS wsync RUNTIME DESTINATION ${folder} COMPONENT ${component} EXCLUDE_FROM_ALL)
  if(WSYNC_WITH_CUDA)
    install(TARGETS wsync_cuda LIBRARY DESTINATION ${folder} COMPONENT ${component} EXCLUDE_FROM_ALL)
  endif()
endfunction()
