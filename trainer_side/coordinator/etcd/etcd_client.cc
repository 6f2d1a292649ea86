#include "trainer_side/coordinator/etcd/etcd_client.h"

#include "shared/base/format.h"
#include "shared/base/units.h"
#include "trainer_side/coordinator/etcd/etcd_messages.h"

namespace wsync::coordinator::etcd {
namespace {

// A record of 1 MiB as base64, with what etcd says of it.
constexpr std::uint64_t kAnswerBytesMax = 2 * limits::kMiB;
constexpr int kStatusOk = 200;

}  // namespace

Result<std::unique_ptr<EtcdClient>> EtcdClient::create(
    const std::vector<std::string>& members, const std::shared_ptr<const http::ClientTls>& tls) {
  std::vector<Member> clients;
  for (const std::string& url : members) {
    auto endpoint = WSYNC_TRY(http::parse_url(url, tls));
    clients.push_back({.url = url, .client = WSYNC_TRY(http::HttpClient::create(endpoint))});
  }
  return std::unique_ptr<EtcdClient>(new EtcdClient(std::move(clients)));
}

EtcdClient::Answer EtcdClient::ask(std::string_view path, const std::string& body) {
  Answer answer;
  std::size_t not_accepted = 0;  // members with which there is no connection by TLS
  for (std::size_t i = 0; i < members_.size() && !is_cancelled_; ++i) {
    const std::size_t at = (first_ + i) % members_.size();
    Member& member = members_[at];
    const auto response = member.client->ask({.path = std::string(path),
                                              .body = body,
                                              .max_bytes = kAnswerBytesMax,
                                              .deadline = now() + kMemberWait});
    std::string failure;
    if (response && response->status == kStatusOk) {
      first_ = at;
      answer.is_done = true;
      answer.body = response->body;
      return answer;
    }
    if (response) {
      const Refusal refusal = parse_refusal(response->status, response->body);
      failure = refusal.text;
      const bool may_be_done = refusal.may_be_done || member.client->was_repeated();
      answer.may_be_done |= may_be_done;
      answer.is_lost |= member.client->was_repeated() || (may_be_done && !refusal.is_settled);
      answer.is_refused |= refusal.is_final;
    } else {
      failure = response.error().message();
      const bool is_refused = response.error().code() == ErrorCode::kRefused;
      not_accepted += is_refused ? 1 : 0;
      const bool may_be_done =
          member.client->was_repeated() || (member.client->was_sent() && !is_refused);
      answer.may_be_done |= may_be_done;
      answer.is_lost |= may_be_done;
    }
    answer.failure +=
        fmt::format("{}{}: {}", answer.failure.empty() ? "" : "; ", member.url, failure);
    if (answer.is_refused) return answer;  // the other members would say the same
  }
  answer.is_refused |= not_accepted == members_.size();
  if (answer.failure.empty()) answer.failure = "this process ends";
  return answer;
}

bool EtcdClient::pause(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return !cancelled_.wait_for(lock, time, [this] { return is_cancelled_.load(); });
}

void EtcdClient::cancel() {
  {
    const std::lock_guard lock(mutex_);
    is_cancelled_ = true;
  }
  cancelled_.notify_all();
  for (const Member& member : members_) member.client->cancel();
}

}  // namespace wsync::coordinator::etcd
