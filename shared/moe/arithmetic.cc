#include "shared/moe/arithmetic.h"

#include <array>
#include <cmath>
#if defined(__GLIBC__)
#include <gnu/libc-version.h>
#endif

#include "shared/base/digest.h"
#include "shared/base/format.h"

namespace wsync::moe {
namespace {

#if defined(__x86_64__)
constexpr const char* kProcessor = "x86-64";
#elif defined(__aarch64__)
constexpr const char* kProcessor = "aarch64";
#else
constexpr const char* kProcessor = "other processor";
#endif

std::string c_library() {
#if defined(__GLIBC__)
  return fmt::format("glibc {}", gnu_get_libc_version());
#else
  return "another C library";
#endif
}

}  // namespace

std::string arithmetic() {
  Digester digester;
  for (int i = 0; i < 4096; ++i) {
    const double x = (i - 2048) / 101.0;
    const std::array<double, 6> of_double{std::exp(x),           std::log(x * x + 0.1),
                                          std::sin(20 * x),      std::cos(20 * x),
                                          std::pow(1e6, x / 30), std::expm1(x / 20)};
    const float single = std::exp(static_cast<float>(x));
    digester.update(std::as_bytes(std::span(of_double)));
    digester.update(std::as_bytes(std::span(&single, 1)));
  }
  return fmt::format("{}, {}, functions {:016x}", kProcessor, c_library(), digester.finish().low);
}

}  // namespace wsync::moe
