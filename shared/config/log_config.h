// Logging of a program: the keys log.*.
#pragma once

#include "shared/base/log.h"

namespace wsync::config {

struct LogConfig {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kHuman;
  friend bool operator==(const LogConfig&, const LogConfig&) = default;
};

}  // namespace wsync::config
