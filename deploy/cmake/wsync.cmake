# Build rules shared by every folder: options of the whole tree, and the functions that declare a component, a test and a
# fuzzer. Nothing is downloaded while configuring; every dependency is a system package.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

include(GNUInstallDirs)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(tl-expected REQUIRED)
if(WSYNC_BUILD_TRAIN)
  find_package(Gloo REQUIRED)
endif()
pkg_check_modules(UV REQUIRED IMPORTED_TARGET libuv)
pkg_check_modules(SSL REQUIRED IMPORTED_TARGET libssl>=3.0 libcrypto)
pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq)
# Its Cflags name what a static libzmq is made of, in another order each time CMake reads them, and everything would be built
# anew. The header needs none of it.
set_target_properties(PkgConfig::ZMQ PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${ZMQ_INCLUDEDIR}" INTERFACE_COMPILE_OPTIONS "")
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET zlib)
# The core alone: its text is served by our own server.
pkg_check_modules(PROMETHEUS REQUIRED IMPORTED_TARGET prometheus-cpp-core)
# What shared/base and shared/weights link, for the static libraries that are installed.
set(WSYNC_SYSTEM_BASE Threads::Threads fmt::fmt spdlog::spdlog PkgConfig::XXHASH)

include(${CMAKE_CURRENT_LIST_DIR}/cuda.cmake)

# Deliberate faults for tests/planted (shared/base/planted.h): never on in a build that is used.
set(WSYNC_PLANTED OFF CACHE BOOL "Build the planted faults in; WSYNC_PLANT=<name> in the environment picks one")
mark_as_advanced(WSYNC_PLANTED)
if(WSYNC_PLANTED)
  add_compile_definitions(WSYNC_PLANTED)
endif()

add_library(wsync_warnings INTERFACE)
target_compile_options(wsync_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor
  -Woverloaded-virtual -Wimplicit-fallthrough -Wno-missing-field-initializers>)
# At -O3 g++ before 13 takes paths through std::variant, std::string and vectors that no program takes for overflows. The other
# builds keep these warnings, as errors.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13 AND CMAKE_BUILD_TYPE STREQUAL "Release")
  target_compile_options(wsync_warnings INTERFACE -Wno-array-bounds -Wno-maybe-uninitialized -Wno-restrict -Wno-stringop-overflow)
endif()

# For code whose speed nobody notices: a quarter less of the compiler's time, with sanitizers half of it.
add_library(wsync_compiled_quickly INTERFACE)
target_compile_options(wsync_compiled_quickly INTERFACE
  $<$<CONFIG:RelWithDebInfo>:$<IF:$<STREQUAL:${WSYNC_SANITIZER},>,-O1,-O0>>)
# The same for tests, whose warnings by way of the optimizer nobody misses either. A failed check names its own line, so they have
# no debug information: a seventh less of the compiler's time with sanitizers.
add_library(wsync_not_optimized INTERFACE)
target_compile_options(wsync_not_optimized INTERFACE $<$<CONFIG:RelWithDebInfo>:-O0 -g0>)

# Of g++ 12's library, which uses what it has itself declared deprecated.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(wsync_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-deprecated-declarations>)
endif()

# A unity build reads each header once for a component or a test, or for 16 files of it: a third less of the compiler's time than
# with CMake's 8, in 1.2 GiB at most. g++ takes a class of a .cc for one of a header there.
if(NOT DEFINED CMAKE_UNITY_BUILD_BATCH_SIZE)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 16)
endif()
# Its garbage collector begins at 128 MiB by itself, and finds little to collect before the end of such a file: a twelfth of the
# compiler's time.
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(wsync_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=786432>)
endif()

if(WSYNC_SANITIZER STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  # Half of the compiler's time for what the address sanitizer sees as well. `vptr` needs a free descriptor, and some tests
  # have none.
  add_compile_options(-fno-sanitize=null,vptr,object-size,alignment)
  add_link_options(-fsanitize=address,undefined)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    set(WSYNC_LIBFUZZER ON)  # tests/fuzz: this build's fuzzers are libFuzzer's
  endif()
elseif(WSYNC_SANITIZER STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(NOT WSYNC_SANITIZER STREQUAL "")
  message(FATAL_ERROR "WSYNC_SANITIZER is '${WSYNC_SANITIZER}'; expected empty, address or thread")
endif()

# wsync_component(<name> SOURCES <file>... [BESIDE_SERVICE <file>...] HEADERS <file>... [LINK <target>...]
#   [PRIVATE_LINK <target>...] [HOT] [FUZZED])
# A static library wsync_<name> with alias wsync::<name>. Headers are included from the root of the tree. HOT: tests spend
# their time in its loops; the dev build and those of the address and thread sanitizers optimize these alone, or more. FUZZED: a fuzzer is led by what it
# covers of this code. BESIDE_SERVICE: sources that `wsync` and the C libraries do not use; a build of the service alone leaves
# them out.
function(wsync_component name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "HOT;FUZZED" "" "SOURCES;BESIDE_SERVICE;HEADERS;LINK;PRIVATE_LINK")
  add_library(wsync_${name} STATIC ${arg_SOURCES})
  if(WSYNC_BUILD_TRAIN OR WSYNC_BUILD_ENGINE OR WSYNC_BUILD_TESTS)
    target_sources(wsync_${name} PRIVATE ${arg_BESIDE_SERVICE})
  endif()
  add_library(wsync::${name} ALIAS wsync_${name})
  target_sources(wsync_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${arg_HEADERS})
  set_target_properties(wsync_${name} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  target_link_libraries(wsync_${name} PUBLIC ${arg_LINK} PRIVATE wsync_warnings ${arg_PRIVATE_LINK})
  if(arg_FUZZED AND WSYNC_LIBFUZZER)
    target_compile_options(wsync_${name} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
  if(NOT arg_HOT AND WSYNC_SANITIZER MATCHES "^(address|thread)?$")
    target_link_libraries(wsync_${name} PRIVATE wsync_compiled_quickly)
  endif()
endfunction()

# wsync_built(<variable> <target>...): whether every component among them is a part of this build. Tests of a program that is left
# out (WSYNC_BUILD_TRAIN, WSYNC_BUILD_ENGINE) are left out with it.
function(wsync_built variable)
  set(${variable} TRUE PARENT_SCOPE)
  foreach(target IN LISTS ARGN)
    if(target MATCHES "^wsync::" AND NOT TARGET ${target})
      set(${variable} FALSE PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# wsync_test(<name> LABEL <unit|contract|scenario|simulation|gpu> SOURCES <file>... LINK <target>... [TIMEOUT <seconds>]
#   [CORE] [ONE_THREAD] [ARITHMETIC] [OPTIMIZED])
# One GoogleTest executable, one CTest entry, and a part of the target tests_<label>. CORE: of code that moves weights; it has the
# label `core` too, is a part of the target tests_core, and CI runs it with the sanitizers for each change. ONE_THREAD: of code
# without threads, in which the thread sanitizer has nothing to find; its builds leave the test out. ARITHMETIC: no sanitizer has
# anything to find. OPTIMIZED: the test spends its time in its own code.
function(wsync_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "ARITHMETIC;CORE;ONE_THREAD;OPTIMIZED" "LABEL;TIMEOUT" "SOURCES;LINK")
  if((arg_ONE_THREAD AND WSYNC_SANITIZER STREQUAL "thread") OR (arg_ARITHMETIC AND WSYNC_SANITIZER))
    return()
  endif()
  wsync_built(built ${arg_LINK})
  if(NOT built)
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE wsync_warnings ${arg_LINK} GTest::gtest GTest::gmock GTest::gtest_main)
  if(NOT arg_OPTIMIZED)
    target_link_libraries(${name} PRIVATE wsync_not_optimized)
  endif()
  target_compile_definitions(${name} PRIVATE WSYNC_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
    $<$<NOT:$<STREQUAL:${WSYNC_SANITIZER},>>:WSYNC_SANITIZED> $<$<STREQUAL:${WSYNC_SANITIZER},thread>:WSYNC_SANITIZED_THREADS>)
  add_test(NAME ${name} COMMAND ${name})
  # It ends what hangs; on a busy machine a sanitizer's build needs many times what a test takes elsewhere.
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS ${arg_LABEL} TIMEOUT ${arg_TIMEOUT})
  if(arg_CORE)
    set_property(TEST ${name} APPEND PROPERTY LABELS core)
    list(APPEND arg_LABEL core)
  endif()
  foreach(label IN LISTS arg_LABEL)
    if(NOT TARGET tests_${label})
      add_custom_target(tests_${label})
    endif()
    add_dependencies(tests_${label} ${name})
  endforeach()
  if(WSYNC_SANITIZER STREQUAL "thread")
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT
      "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan_suppressions.txt:die_after_fork=0")
  endif()
endfunction()

# wsync_program(<name> SOURCE <file> LINK <target>...)
# An executable that is installed, and a part of the target `programs`. All of them lie in one folder, where one finds the other.
add_custom_target(programs)
function(wsync_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "SOURCE" "LINK")
  add_executable(${name} ${arg_SOURCE})
  target_link_libraries(${name} PRIVATE wsync_warnings ${arg_LINK})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/deploy/cli)
  add_dependencies(programs ${name})
  install(TARGETS ${name} RUNTIME)
endfunction()

# wsync_c_library(<name> COMPONENTS <name>... [ALSO <name>...] [SYSTEM <target>...])
# lib wsync_<name> with a C API (c_api.cc and wsync/<name>.h of the calling folder) for the programs of others: shared,
# where only the C symbols are visible, and static, with everything of ours that it needs. COMPONENTS: that, in full;
# ALSO: further parts of the C API (<name>_api.cc and wsync/<name>.h); SYSTEM: the libraries of the system that these link.
function(wsync_c_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "ALSO;COMPONENTS;SYSTEM")
  set(shared wsync_${name}_shared)
  set(sources c_api.cc)
  set(headers wsync/${name}.h)
  foreach(part IN LISTS arg_ALSO)
    list(APPEND sources ${part}_api.cc)
    list(APPEND headers wsync/${part}.h)
  endforeach()
  add_library(${shared} SHARED ${sources})
  # Objects of their own in a unity build too: the component has them as well, and only one of each is to be linked.
  set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  add_library(wsync::${name}_shared ALIAS ${shared})
  set_target_properties(${shared} PROPERTIES EXPORT_NAME ${name} CXX_VISIBILITY_PRESET hidden
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
    LINK_DEPENDS ${PROJECT_SOURCE_DIR}/deploy/cmake/c_api.map)
  list(TRANSFORM arg_COMPONENTS PREPEND wsync:: OUTPUT_VARIABLE components)
  target_link_libraries(${shared} PRIVATE wsync_warnings ${components})
  # nodelete: the thread that writes the log, and the handlers of fork(), run until the process ends.
  target_link_options(${shared} PRIVATE -Wl,-z,nodelete
    -Wl,--exclude-libs,ALL -Wl,--version-script=${PROJECT_SOURCE_DIR}/deploy/cmake/c_api.map)

  set(static wsync_${name}_static)
  set(objects "")
  foreach(component IN LISTS arg_COMPONENTS)
    list(APPEND objects $<TARGET_OBJECTS:wsync_${component}>)
  endforeach()
  add_library(${static} STATIC ${objects})
  # In a folder of its own: a component may have the same name.
  set_target_properties(${static} PROPERTIES EXPORT_NAME ${name}_static LINKER_LANGUAGE CXX
    ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/static)
  target_link_libraries(${static} PRIVATE ${arg_SYSTEM})

  foreach(target ${shared} ${static})
    set_target_properties(${target} PROPERTIES OUTPUT_NAME wsync_${name})
    target_include_directories(${target} PUBLIC
      $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/shared/c_api>
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  endforeach()
  install(TARGETS ${shared} EXPORT wsyncTargets)
  install(TARGETS ${static} EXPORT wsyncStaticTargets)
  install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/wsync)
endfunction()
