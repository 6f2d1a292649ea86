#include "inference_side/engine/http/completion_run.h"

#include <condition_variable>
#include <mutex>
#include <utility>

namespace wsync::engine::http {

using generation::Delivery;
using generation::RequestId;

struct CompletionRun::Mailbox {
  std::mutex mutex;
  std::condition_variable filled;
  std::vector<News> news;

  void put(std::size_t index, Delivery delivery) {
    {
      const std::lock_guard lock(mutex);
      news.push_back({.index = index, .delivery = std::move(delivery)});
    }
    filled.notify_one();
  }
};

CompletionRun::CompletionRun(generation::GenerationService& service)
    : service_(service), mailbox_(std::make_shared<Mailbox>()) {}

Result<std::unique_ptr<CompletionRun>> CompletionRun::start(
    generation::GenerationService& service, const std::vector<generation::Request>& requests) {
  std::unique_ptr<CompletionRun> run(new CompletionRun(service));
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto id = service.submit(requests[i], [mailbox = run->mailbox_, i](Delivery delivery) {
      mailbox->put(i, std::move(delivery));
    });
    if (!id) return fail(id.error());
    run->ids_.push_back(*id);
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
    mailbox_->filled.wait_for(lock, wait, [&] { return !mailbox_->news.empty(); });
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
  // No ids would be all requests of the engine.
  if (!running.empty()) service_.abort(running);
}

}  // namespace wsync::engine::http
