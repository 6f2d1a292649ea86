// Task: a callable without arguments that can be moved but not copied, so that it may own
// descriptors.
#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

namespace wsync {

class Task {
 public:
  Task() noexcept = default;
  template <class F>
    requires(!std::same_as<std::remove_cvref_t<F>, Task> && std::invocable<std::decay_t<F>&>)
  Task(F&& function)  // NOLINT(google-explicit-constructor): used like std::function
      : body_(std::make_unique<Body<std::decay_t<F>>>(std::forward<F>(function))) {}
  [[nodiscard]] explicit operator bool() const noexcept { return body_ != nullptr; }
  // Undefined if empty.
  void operator()() { body_->run(); }

 private:
  struct Base {
    Base() = default;
    Base(const Base&) = delete;
    Base& operator=(const Base&) = delete;
    virtual ~Base() = default;
    virtual void run() = 0;
  };
  template <class F>
  struct Body final : Base {
    explicit Body(F f) : function(std::move(f)) {}
    void run() override { function(); }
    F function;
  };
  std::unique_ptr<Base> body_;
};

}  // namespace wsync
