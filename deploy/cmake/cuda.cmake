# Whether the CUDA backend is built, and how its kernels are. WSYNC_CUDA: ON, what is missing is an error; AUTO, the backend is
# off without it; OFF. Sets WSYNC_WITH_CUDA and, with it, what find_cuda.cmake does and WSYNC_CUDA_GPUS. Nothing of it is
# linked: the library asks for libcuda and libnccl when it is used.
# Kept from the environment of the first configuration: a build that configures itself anew finds the same.
set(CUDA_HOME "$ENV{CUDA_HOME}" CACHE PATH "Folder of the CUDA toolkit (contains include/cuda.h and lib64/libnvrtc.so)")
set(NCCL_HOME "$ENV{NCCL_HOME}" CACHE PATH "Folder of NCCL (contains include/nccl.h)")
mark_as_advanced(CUDA_HOME NCCL_HOME)

# What keeps the backend from being built, in words; empty: nothing.
macro(wsync_cuda_obstacle)
  set(obstacle "")
  if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux" OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|aarch64)$")
    set(obstacle "it is for Linux on x86_64 and aarch64; this is ${CMAKE_SYSTEM_NAME} on ${CMAKE_SYSTEM_PROCESSOR}")
  else()
    include(${CMAKE_CURRENT_LIST_DIR}/find_cuda.cmake)
    if(WSYNC_NVRTC STREQUAL "")
      set(obstacle "no CUDA toolkit: neither CUDA_HOME, a Python package, /usr/local/cuda, PATH nor /usr has libnvrtc.so and cuda.h")
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
  # Machine code runs on GPUs of its own major capability. Newer GPUs get the PTX, which their driver compiles.
  set(WSYNC_CUDA_GPUS sm_80 sm_90)
  if(WSYNC_CUDA_VERSION VERSION_GREATER_EQUAL 12.8)
    list(APPEND WSYNC_CUDA_GPUS sm_100)
  endif()
  list(APPEND WSYNC_CUDA_GPUS compute_80)
  list(JOIN WSYNC_CUDA_GPUS ", " kernels)
  if(WSYNC_CUDA_VERSION VERSION_LESS 12.8)
    string(APPEND kernels " (sm_100 needs CUDA 12.8: there the PTX is compiled when it is loaded)")
  endif()
  string(REGEX MATCH "^[0-9]+" major ${WSYNC_CUDA_VERSION})
  set(nccl_found "${WSYNC_NCCL_LIBRARY}")
  if(nccl_found STREQUAL "")
    set(nccl_found "no libnccl.so.2 beside it")
  endif()
  message(STATUS "CUDA backend: on")
  message(STATUS "  NVRTC ${WSYNC_CUDA_VERSION}: ${WSYNC_NVRTC}")
  message(STATUS "  cuda.h ${WSYNC_CUDA_VERSION}: ${WSYNC_CUDA_INCLUDE}")
  message(STATUS "  nccl.h ${WSYNC_NCCL_VERSION}: ${WSYNC_NCCL_INCLUDE} (${nccl_found})")
  message(STATUS "  kernels: ${kernels}; for drivers of CUDA ${major} and later")
  foreach(passed IN LISTS WSYNC_CUDA_PASSED WSYNC_NCCL_PASSED)
    message(STATUS "  not used: ${passed}")
  endforeach()
endif()

# wsync_kernel_images(<target> <source.cu> <object.cc>): compiles the kernels to one file of images, WSYNC_KERNEL_IMAGES in
# <object.cc>, which embeds it. Beside it, in the .log, what ptxas says of registers, stack and spills.
function(wsync_kernel_images target source object)
  get_filename_component(name ${source} NAME_WE)
  set(images ${CMAKE_CURRENT_BINARY_DIR}/${name}.images)
  set(werror "")
  if(CMAKE_COMPILE_WARNING_AS_ERROR)
    set(werror --warnings-are-errors)
  endif()
  find_program(python NAMES python3 NO_CACHE REQUIRED)
  add_custom_command(OUTPUT ${images} BYPRODUCTS ${images}.log
    COMMAND ${python} ${PROJECT_SOURCE_DIR}/deploy/cuda/compile_kernels.py --nvrtc ${WSYNC_NVRTC} --root ${PROJECT_SOURCE_DIR}
      --source ${CMAKE_CURRENT_SOURCE_DIR}/${source} --gpus ${WSYNC_CUDA_GPUS} ${werror} --out ${images}
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source} ${PROJECT_SOURCE_DIR}/deploy/cuda/compile_kernels.py ${WSYNC_NVRTC}
    DEPFILE ${images}.d VERBATIM COMMENT "Compiling the kernels of ${source}")
  set_source_files_properties(${object} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON OBJECT_DEPENDS ${images}
    COMPILE_DEFINITIONS "WSYNC_KERNEL_IMAGES=\"${images}\"")
  target_sources(${target} PRIVATE ${object})
endfunction()
