// KeyWatch: the keys of a coordinator. It reads the folder of keys at the start and after SIGHUP,
// judges messages, and logs what was refused.
//
// Thread: the loop's.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "shared/base/refusal_log.h"
#include "shared/control/keys/key_folder.h"
#include "shared/control/port.h"
#include "shared/control/zmq/ports.h"
#include "shared/loop/hangup_signal.h"

namespace wsync::publish {

class KeyWatch {
 public:
  // Reads the folder. Errors: those of KeyFolder::open() and authorized().
  [[nodiscard]] static Result<std::unique_ptr<KeyWatch>> create(const std::string& folder);
  KeyWatch(const KeyWatch&) = delete;
  KeyWatch& operator=(const KeyWatch&) = delete;

  // The keys for listen_zmq(), as they were read at the start.
  [[nodiscard]] control::RouterKeys router_keys() const;
  // Sets the callbacks of a port that has these keys: which messages it refuses, and what it logs.
  // This object must outlive the port.
  void guard(control::RouterCallbacks& callbacks);
  // Reads the folder again after each SIGHUP, and has the port admit the keys that are then listed.
  // If the folder cannot be read, the keys stay as they are and an error is logged. Both must
  // outlive this object. An application that handles SIGHUP itself keeps its handler, and a warning
  // is logged.
  void follow_hangups(Loop& loop, control::RouterPort& port);

 private:
  KeyWatch(control::KeyFolder folder, control::AuthorizedKeys listed)
      : folder_(std::move(folder)), listed_(std::move(listed)) {}
  void read_again(control::RouterPort& port);

  control::KeyFolder folder_;
  control::AuthorizedKeys listed_;  // at the start
  RefusalLog refusals_;
  std::unique_ptr<HangupSignal> hangups_;
};

}  // namespace wsync::publish
