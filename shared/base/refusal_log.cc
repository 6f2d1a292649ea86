#include "shared/base/refusal_log.h"

#include <chrono>

#include "shared/base/format.h"
#include "shared/base/log.h"

namespace wsync {
namespace {

// Who is refused tries again every few seconds, for as long as it lives.
constexpr std::chrono::seconds kSayAgainAfter{60};
constexpr std::size_t kSaidMax = 20;  // in that time

}  // namespace

void RefusalLog::add(const std::string& sentence) {
  if (said_.empty() || now() - said_from_ >= kSayAgainAfter) {
    if (unsaid_ != 0) log_warning("{} more were not logged", counted(unsaid_, "refusal"));
    said_.clear();
    said_from_ = now();
    unsaid_ = 0;
  }
  if (said_.size() < kSaidMax && said_.insert(sentence).second)
    log_warning("{}", sentence);
  else
    ++unsaid_;
}

}  // namespace wsync
