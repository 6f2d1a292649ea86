// EtcdClient: asks the members of one etcd cluster. Any member can answer for all of them, so the
// next one is asked where one does not answer.
//
// Thread: one at a time. Any thread may call cancel().
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/error.h"
#include "shared/observe/http/http_client.h"

namespace wsync::coordinator::etcd {

// How long one member is waited for, before the next one is asked. A cluster that has lost its
// leader chooses another one within about a second.
inline constexpr std::chrono::milliseconds kMemberWait{2000};
// The pause before all members are asked again.
inline constexpr std::chrono::milliseconds kRetryPause{200};

class EtcdClient {
 public:
  // `members`: at least one, such as https://10.0.0.5:2379. `tls`: null without https://.
  // kInvalidInput if one is not an address; kResourceExhausted without descriptors.
  [[nodiscard]] static Result<std::unique_ptr<EtcdClient>> create(
      const std::vector<std::string>& members,
      const std::shared_ptr<const http::ClientTls>& tls = {});
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  struct Answer {
    bool is_done = false;  // `body` is the answer of a member that has done it
    std::string body;
    std::string failure;  // otherwise: one sentence, which names the members
    // A member has said why it does not do this, or no member and this client accept each other.
    bool is_refused = false;
    bool may_be_done = false;  // a member may have done it, or may still do it
    bool is_lost = false;      // it may still do it: a read does not show yet whether it will
  };
  // Asks each member once, the one that answered last first, until one answers.
  [[nodiscard]] Answer ask(std::string_view path, const std::string& body);
  // Waits before the next ask(). False: it was cancelled.
  [[nodiscard]] bool pause(std::chrono::milliseconds time = kRetryPause);
  // Ends the current call and every later one.
  void cancel();
  [[nodiscard]] bool is_cancelled() const noexcept { return is_cancelled_; }

 private:
  struct Member {
    std::string url;
    std::unique_ptr<http::HttpClient> client;
  };
  explicit EtcdClient(std::vector<Member> members) : members_(std::move(members)) {}

  std::vector<Member> members_;
  std::size_t first_ = 0;  // to be asked
  std::atomic<bool> is_cancelled_{false};
  std::mutex mutex_;
  std::condition_variable cancelled_;
};

}  // namespace wsync::coordinator::etcd
