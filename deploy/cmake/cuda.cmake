# Whether the CUDA backend is built, and how its kernels are. WSYNC_CUDA: ON, what is missing is an error; AUTO, the backend is
# off without it; OFF. Sets WSYNC_WITH_CUDA and, with it, what find_cuda.cmake does and WSYNC_CUDA_GENCODE. Nothing of it is
# linked: the library asks for libcuda and libnccl when it is used.
# Kept from the environment of the first configuration: a build that configures itself anew finds the same.
set(CUDA_HOME "$ENV{CUDA_HOME}" CACHE PATH "Folder of the CUDA toolkit (contains bin/nvcc and include/cuda.h)")
set(NCCL_HOME "$ENV{NCCL_HOME}" CACHE PATH "Folder of NCCL (contains include/nccl.h)")
mark_as_advanced(CUDA_HOME NCCL_HOME)

# What keeps the backend from being built, in words; empty: nothing.
macro(wsync_cuda_obstacle)
  set(obstacle "")
  if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux" OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|aarch64)$")
    set(obstacle "it is for Linux on x86_64 and aarch64; this is ${CMAKE_SYSTEM_NAME} on ${CMAKE_SYSTEM_PROCESSOR}")
  else()
    include(${CMAKE_CURRENT_LIST_DIR}/find_cuda.cmake)
    if(WSYNC_NVCC STREQUAL "")
      set(obstacle "no CUDA toolkit: neither CUDA_HOME, PATH, /usr/local/cuda nor a Python package has nvcc and cuda.h")
      set(passed ${WSYNC_CUDA_PASSED})
    elseif(WSYNC_NCCL_INCLUDE STREQUAL "")
      set(obstacle "no NCCL: neither NCCL_HOME, the system nor a Python package has nccl.h; CUDA ${WSYNC_CUDA_VERSION} is in ${WSYNC_CUDA_INCLUDE}")
      set(passed ${WSYNC_NCCL_PASSED})
    endif()
    if(NOT obstacle STREQUAL "" AND NOT "${passed}" STREQUAL "")
      list(JOIN passed "; " passed)
      string(APPEND obstacle "; not used: ${passed}")
    endif()
  endif()
endmacro()

set(WSYNC_WITH_CUDA OFF)
if(NOT WSYNC_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "WSYNC_CUDA is '${WSYNC_CUDA}'; expected AUTO, ON or OFF")
elseif(WSYNC_CUDA STREQUAL "OFF")
  message(STATUS "CUDA backend: off (WSYNC_CUDA=OFF)")
else()
  wsync_cuda_obstacle()
  if(obstacle STREQUAL "")
    set(WSYNC_WITH_CUDA ON)
  elseif(WSYNC_CUDA STREQUAL "ON")
    message(FATAL_ERROR "WSYNC_CUDA=ON, but ${obstacle}. Name the toolkit with CUDA_HOME and NCCL with NCCL_HOME, let "
      "deploy/test.sh install both, or configure with WSYNC_CUDA=AUTO or OFF")
  else()
    message(STATUS "CUDA backend: off (${obstacle})")
  endif()
endif()

if(WSYNC_WITH_CUDA)
  set(kernels "sm_80, sm_90")
  set(WSYNC_CUDA_GENCODE -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90)
  if(WSYNC_CUDA_VERSION VERSION_GREATER_EQUAL 12.8)
    string(APPEND kernels ", sm_100")
    list(APPEND WSYNC_CUDA_GENCODE -gencode=arch=compute_100,code=sm_100)
  endif()
  list(APPEND WSYNC_CUDA_GENCODE -gencode=arch=compute_80,code=compute_80)
  string(APPEND kernels ", PTX of compute_80")
  if(WSYNC_CUDA_VERSION VERSION_LESS 12.8)
    string(APPEND kernels " (sm_100 needs CUDA 12.8: there the PTX is compiled when it is loaded)")
  endif()
  set(nccl_found "${WSYNC_NCCL_LIBRARY}")
  if(nccl_found STREQUAL "")
    set(nccl_found "no libnccl.so.2 beside it")
  endif()
  message(STATUS "CUDA backend: on")
  message(STATUS "  nvcc ${WSYNC_NVCC_VERSION}: ${WSYNC_NVCC}")
  message(STATUS "  cuda.h ${WSYNC_CUDA_VERSION}: ${WSYNC_CUDA_INCLUDE}")
  message(STATUS "  nccl.h ${WSYNC_NCCL_VERSION}: ${WSYNC_NCCL_INCLUDE} (${nccl_found})")
  message(STATUS "  kernels: ${kernels}")
  foreach(passed IN LISTS WSYNC_CUDA_PASSED WSYNC_NCCL_PASSED)
    message(STATUS "  not used: ${passed}")
  endforeach()
endif()

# wsync_fatbin(<target> <source.cu> <object.cc>): compiles the kernels to one fat binary, WSYNC_FATBIN in <object.cc>, which
# embeds it. Beside it, in the .log, what ptxas says of registers, stack and spills.
function(wsync_fatbin target source object)
  get_filename_component(name ${source} NAME_WE)
  set(fatbin ${CMAKE_CURRENT_BINARY_DIR}/${name}.fatbin)
  set(host_compiler ${CMAKE_CXX_COMPILER})
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    find_program(gnu NAMES g++ NO_CACHE)  # nvcc takes every g++ that this tree does, and few of the others
    if(gnu)
      set(host_compiler ${gnu})
    endif()
  endif()
  set(werror "")
  if(CMAKE_COMPILE_WARNING_AS_ERROR)
    set(werror -Werror all-warnings)
  endif()
  set(include -isystem ${WSYNC_CUDA_INCLUDE})
  if(WSYNC_CUDA_INCLUDE IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
    set(include "")  # the library's own headers would no longer find those behind them
  endif()
  add_custom_command(OUTPUT ${fatbin} BYPRODUCTS ${fatbin}.log
    COMMAND ${CMAKE_COMMAND} -DLOG=${fatbin}.log -P ${PROJECT_SOURCE_DIR}/deploy/cmake/compile_kernels.cmake --
      ${WSYNC_NVCC} -fatbin -std=c++17 -O3 -lineinfo ${WSYNC_CUDA_GENCODE} -Xptxas=-v ${werror} -ccbin ${host_compiler}
      -I${PROJECT_SOURCE_DIR} ${include} -MMD -MF ${fatbin}.d -MT ${fatbin}
      -o ${fatbin} ${CMAKE_CURRENT_SOURCE_DIR}/${source}
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source} ${PROJECT_SOURCE_DIR}/deploy/cmake/compile_kernels.cmake
    DEPFILE ${fatbin}.d VERBATIM COMMENT "Compiling the kernels of ${source}")
  set_source_files_properties(${object} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON OBJECT_DEPENDS ${fatbin}
    COMPILE_DEFINITIONS "WSYNC_FATBIN=\"${fatbin}\"")
  target_sources(${target} PRIVATE ${object})
endfunction()
