#include "inference_side/reference_engine/http/completion_run.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace wsync::engine::http {

using generation::Delivery;
using generation::RequestId;

struct CompletionRun::Mailbox {
  Mailbox(Until what, std::size_t requests) : until(what), finished(requests) {}

  void put(std::size_t index, Delivery delivery) {
    bool is_due = false;
    {
      const std::lock_guard lock(mutex);
      if (delivery.finished) finished[index] = true;
      news.push_back({.index = index, .delivery = std::move(delivery)});
      is_due = due();
    }
    if (is_due) filled.notify_one();
  }
  // Whether the condition of take() holds. The caller holds the mutex.
  [[nodiscard]] bool due() const {
    return until == Until::kNews
               ? !news.empty()
               : std::find(finished.begin(), finished.end(), false) == finished.end();
  }

  const Until until;
  std::mutex mutex;
  std::condition_variable filled;
  std::vector<News> news;
  std::vector<bool> finished;  // by request
};

CompletionRun::CompletionRun(generation::GenerationService& service, Until until,
                             std::size_t requests)
    : service_(service), mailbox_(std::make_shared<Mailbox>(until, requests)) {}

Result<std::unique_ptr<CompletionRun>> CompletionRun::start(
    generation::GenerationService& service, const std::vector<generation::Request>& requests,
    Until until) {
  std::unique_ptr<CompletionRun> run(new CompletionRun(service, until, requests.size()));
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto id =
        WSYNC_TRY(service.submit(requests[i], [mailbox = run->mailbox_, i](Delivery delivery) {
          mailbox->put(i, std::move(delivery));
        }));
    run->ids_.push_back(id);
    run->ended_.push_back(false);
    ++run->unfinished_;
  }
  return run;
}

CompletionRun::~CompletionRun() {
  for (std::size_t i = 0; i < ids_.size(); ++i)
    if (!ended_[i]) service_.cancel(ids_[i]);
}

std::vector<CompletionRun::News> CompletionRun::take(std::chrono::milliseconds wait) {
  std::vector<News> news;
  {
    std::unique_lock lock(mailbox_->mutex);
    mailbox_->filled.wait_for(lock, wait, [&] { return mailbox_->due(); });
    news.swap(mailbox_->news);
  }
  for (const News& item : news)
    if (item.delivery.finished && !ended_[item.index]) {
      ended_[item.index] = true;
      --unfinished_;
    }
  return news;
}

void CompletionRun::abort() {
  std::vector<RequestId> running;
  for (std::size_t i = 0; i < ids_.size(); ++i)
    if (!ended_[i]) running.push_back(ids_[i]);
  // An empty list would abort all requests of the engine.
  if (!running.empty()) service_.abort(running);
}

}  // namespace wsync::engine::http
