// KeyFolder: the keys of one fleet, on the host of its coordinator.
//
//   coordinator.key        key pair of the coordinator (KeyFile), mode 0600
//   authorized/ROLE/NAME   public half of each key that is admitted (AuthorizedKeys)
//   issued/ROLE.NAME.key   key pair of NAME (KeyFile), mode 0600, until it is carried to its host
//
// The folder and those in it have mode 0700. Each file is written whole or not at all.
//
// Thread: any. Two processes that add the same name at once: one of them fails with kBusy.
#pragma once

#include <filesystem>
#include <utility>

#include "shared/base/error.h"
#include "shared/control/keys/authorized_keys.h"
#include "shared/control/keys/key_file.h"

namespace wsync::control {

class KeyFolder {
 public:
  // Makes the folder (its parent must exist) with the coordinator's key pair. An empty folder may
  // exist already. kBusy if it has keys.
  [[nodiscard]] static Result<KeyFolder> init(const std::filesystem::path& folder,
                                              const KeyPair& coordinator);
  // Opens a folder that init() has made. kNotFound if it is none; kRefused as check_own_folder()
  // and load_key_file().
  [[nodiscard]] static Result<KeyFolder> open(const std::filesystem::path& folder);

  // Key pair of the coordinator.
  [[nodiscard]] const KeyFile& coordinator() const noexcept { return coordinator_; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return folder_; }
  // Reads the public halves that are listed now.
  [[nodiscard]] Result<AuthorizedKeys> authorized() const;

  // Lists the public half and writes the key file to `file`, or to issued/ROLE.NAME.key if that is
  // empty. Returns the path of the key file. kInvalidInput for the role of the coordinator and for
  // a name that no key may have; kBusy if the owner has a key already, or the file exists.
  [[nodiscard]] Result<std::filesystem::path> add(const KeyOwner& owner, const KeyPair& pair,
                                                  const std::filesystem::path& file = {});
  // Unlists the key of the owner, and removes its key file from issued/. Returns whether there was
  // such a file. kNotFound, with the names of this role, if the owner has no key.
  [[nodiscard]] Result<bool> remove(const KeyOwner& owner);

 private:
  KeyFolder(std::filesystem::path folder, KeyFile coordinator)
      : folder_(std::move(folder)), coordinator_(std::move(coordinator)) {}
  [[nodiscard]] std::filesystem::path public_file(const KeyOwner& owner) const;
  [[nodiscard]] std::filesystem::path issued_file(const KeyOwner& owner) const;

  std::filesystem::path folder_;
  KeyFile coordinator_;
};

}  // namespace wsync::control
