// What any library that contains the loader answers, wherever it lies.
#include <string>

#include "shared/device/cuda_library.h"

extern "C" __attribute__((visibility("default"))) const char* wsync_test_ask() {
  static std::string answer;
  const auto backend = wsync::device::cuda_backend();
  answer = backend ? "loaded" : backend.error().message();
  return answer.c_str();
}
