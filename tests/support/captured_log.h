// Captures what this process logs. The log is written by a thread, so that both ends have to wait.
#pragma once

#include <gtest/gtest.h>
#include <string>

#include "shared/base/log.h"

namespace wsync::test {

inline void capture_log() {
  log_flush(kLogFlush);
  testing::internal::CaptureStderr();
}

// What was logged since capture_log().
inline std::string captured_log() {
  log_flush(kLogFlush);
  return testing::internal::GetCapturedStderr();
}

}  // namespace wsync::test
