// `wsync keys`: makes, lists and removes the keys of a fleet, in the folder that the coordinator
// reads. No command prints a secret.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "deploy/cli/commands.h"
#include "shared/base/format.h"
#include "shared/command/outcome.h"
#include "shared/config/sources.h"
#include "shared/control/keys/key_folder.h"
#include "shared/control/zmq/key_pair.h"
#include "shared/observe/http/access_token.h"

namespace wsync::cli {
namespace {

namespace fs = std::filesystem;

struct KeysOptions {
  std::string folder;
  std::string role;
  std::string name;
  std::string file;
};

// The folder of WSYNC_KEYS, as the configuration of a coordinator has it.
std::string default_key_folder() {
  const auto environment = config::process_environment();
  const auto folder = environment.find("WSYNC_KEYS");
  return folder == environment.end() ? std::string() : folder->second;
}

Result<control::KeyFolder> open_key_folder(const KeysOptions& options) {
  if (options.folder.empty())
    return fail(ErrorCode::kInvalidInput,
                "--keys: expected the folder of keys that `wsync keys init` has made (or its path "
                "in WSYNC_KEYS), found none");
  return control::KeyFolder::open(options.folder);
}

std::string absolute_path(const fs::path& path) {
  std::error_code error;
  const fs::path whole = fs::absolute(path, error);
  return (error ? path : whole.lexically_normal()).string();
}

Result<Outcome> init_keys(const KeysOptions& options) {
  const auto pair = WSYNC_TRY(control::make_key_pair());
  const auto folder = WSYNC_TRY(control::KeyFolder::init(options.folder, pair));
  const std::string path = absolute_path(folder.path());
  return Outcome{.result = {{"folder", path}, {"server_key", pair.public_key}},
                 .text = fmt::format(
                     "{} has the key of a coordinator ({})\nadd keys with `wsync keys add ROLE "
                     "NAME --keys {}`, and start the coordinator with `keys: {}`\n",
                     path, pair.public_key, path, path)};
}

Result<Outcome> add_key(const KeysOptions& options) {
  const control::KeyOwner owner{.role = WSYNC_TRY(control::parse_role(options.role)),
                                .name = options.name};
  auto folder = WSYNC_TRY(open_key_folder(options));
  const auto pair = WSYNC_TRY(control::make_key_pair());
  const std::string file = absolute_path(WSYNC_TRY(folder.add(owner, pair, options.file)));
  return Outcome{.result = {{"role", options.role},
                            {"name", options.name},
                            {"public_key", pair.public_key},
                            {"file", file}},
                 .text = fmt::format("{} has a key ({})\ncarry {} to its host, with mode 0600; a "
                                     "coordinator that runs admits it after SIGHUP\n",
                                     owner.text(), pair.public_key, file)};
}

Result<Outcome> list_keys(const KeysOptions& options) {
  const auto folder = WSYNC_TRY(open_key_folder(options));
  const auto listed = WSYNC_TRY(folder.authorized());
  std::vector<std::pair<control::KeyOwner, std::string>> keys;
  for (const auto& [key, owner] : listed.owners()) keys.emplace_back(owner, key);
  std::ranges::sort(keys, [](const auto& a, const auto& b) {
    return std::pair(a.first.role, a.first.name) < std::pair(b.first.role, b.first.name);
  });
  nlohmann::json list = nlohmann::json::array();
  std::string text = fmt::format("{:<11}  {:<20}  {}\n", "ROLE", "NAME", "PUBLIC KEY");
  const auto add = [&](const control::KeyOwner& owner, const std::string& key) {
    text += fmt::format("{:<11}  {:<20}  {}\n", control::role_name(owner.role), owner.name, key);
    list.push_back(
        {{"role", control::role_name(owner.role)}, {"name", owner.name}, {"public_key", key}});
  };
  add(folder.coordinator().owner, folder.coordinator().pair.public_key);
  for (const auto& [owner, key] : keys) add(owner, key);
  return Outcome{.result = {{"folder", absolute_path(folder.path())}, {"keys", std::move(list)}},
                 .text = std::move(text)};
}

Result<Outcome> remove_key(const KeysOptions& options) {
  const control::KeyOwner owner{.role = WSYNC_TRY(control::parse_role(options.role)),
                                .name = options.name};
  auto folder = WSYNC_TRY(open_key_folder(options));
  const bool was_here = WSYNC_TRY(folder.remove(owner));
  return Outcome{
      .result = {{"role", options.role}, {"name", options.name}, {"removed_file", was_here}},
      .text = fmt::format("the key of {} is listed no more{}\na coordinator that runs admits it "
                          "until SIGHUP\n",
                          owner.text(), was_here ? ", and its file is removed" : "")};
}

Result<Outcome> make_token(const KeysOptions& options) {
  WSYNC_TRY(http::AccessToken::make(options.file));
  const std::string file = absolute_path(options.file);
  return Outcome{
      .result = {{"file", file}},
      .text = fmt::format("{} has a token; set `http.token` of a coordinator or sidecar to it, or "
                          "start an engine with --http-token\n",
                          file)};
}

void add_folder_option(CLI::App& command, KeysOptions& options) {
  options.folder = default_key_folder();
  command
      .add_option("--keys", options.folder,
                  "Folder of the fleet's keys (default: WSYNC_KEYS of the environment)")
      ->type_name("DIR");
}

void add_owner_options(CLI::App& command, KeysOptions& options) {
  command.add_option("ROLE", options.role, "publisher, sidecar, reader or operator")->required();
  command.add_option("NAME", options.name, "Name of the holder; of a sidecar its `name`")
      ->required();
}

void add_keys_init(CLI::App& parent, Context& context) {
  auto options = std::make_shared<KeysOptions>();
  CLI::App* command = add_command(
      parent, context,
      {.name = "init",
       .description = "Make the folder of a fleet's keys, with those of its coordinator",
       .examples = {"wsync keys init /etc/wsync/keys"}});
  command->add_option("DIR", options->folder, "Folder to make; its parent must exist")->required();
  command->callback(
      [&context, options] { context.run("keys init", [&] { return init_keys(*options); }); });
}

void add_keys_add(CLI::App& parent, Context& context) {
  auto options = std::make_shared<KeysOptions>();
  CLI::App* command = add_command(
      parent, context,
      {.name = "add",
       .description = "Make a key pair for a holder, and list its public half",
       .examples = {"wsync keys add sidecar host7 --keys /etc/wsync/keys",
                    "wsync keys add operator alice --keys /etc/wsync/keys --output alice.key"}});
  add_owner_options(*command, *options);
  add_folder_option(*command, *options);
  command
      ->add_option("-o,--output", options->file,
                   "File for the key pair, which must not exist (default: "
                   "DIR/issued/ROLE.NAME.key)")
      ->type_name("FILE");
  command->callback(
      [&context, options] { context.run("keys add", [&] { return add_key(*options); }); });
}

void add_keys_list(CLI::App& parent, Context& context) {
  auto options = std::make_shared<KeysOptions>();
  CLI::App* command = add_command(
      parent, context,
      {.name = "list",
       .description = "List who has a key, with its public half",
       .examples = {"wsync keys list --keys /etc/wsync/keys", "wsync keys list --json"}});
  add_folder_option(*command, *options);
  command->callback(
      [&context, options] { context.run("keys list", [&] { return list_keys(*options); }); });
}

void add_keys_remove(CLI::App& parent, Context& context) {
  auto options = std::make_shared<KeysOptions>();
  CLI::App* command = add_command(
      parent, context,
      {.name = "remove",
       .description = "Unlist the key of a holder, and remove its file if that is still here",
       .examples = {"wsync keys remove sidecar host7 --keys /etc/wsync/keys"}});
  add_owner_options(*command, *options);
  add_folder_option(*command, *options);
  command->callback(
      [&context, options] { context.run("keys remove", [&] { return remove_key(*options); }); });
}

void add_keys_token(CLI::App& parent, Context& context) {
  auto options = std::make_shared<KeysOptions>();
  CLI::App* command =
      add_command(parent, context,
                  {.name = "token",
                   .description = "Make a token that the clients of HTTP pages and of engines show",
                   .examples = {"wsync keys token /etc/wsync/pages.token"}});
  command->add_option("FILE", options->file, "File for the token, which must not exist")
      ->required();
  command->callback(
      [&context, options] { context.run("keys token", [&] { return make_token(*options); }); });
}

}  // namespace

void add_keys(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand(
      "keys", "Keys of a fleet: who may be a sidecar, look at the fleet, or change it");
  command->require_subcommand(1);
  add_keys_init(*command, context);
  add_keys_add(*command, context);
  add_keys_list(*command, context);
  add_keys_remove(*command, context);
  add_keys_token(*command, context);
}

}  // namespace wsync::cli
