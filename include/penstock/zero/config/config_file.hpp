#pragma once

#include <penstock/zero/config/config.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::zero {

/// Where the value of a key comes from.
struct KeyOrigin {
  enum class Source : std::uint8_t {
    file,           ///< given, on `line`
    automatic,      ///< given as "auto" on `line`: the default
    derived,        ///< follows from other keys
    default_value,  ///< not given
  };

  std::string path;           ///< "zero_optimization.stage"
  std::string value;          ///< as JSON; empty where only the start of a run decides it
  std::string in_words = {};  ///< of a key without a value: "measured at start"
  Source source = Source::default_value;
  std::string
      given_as;  ///< the path as the file spells it: another name of the key, maybe; empty if not given
  std::uint32_t line = 0;  ///< from 1; 0 if not given
  /// As JSON, of `file`: what the line says, where other keys make that another value; else empty.
  std::string given_value = {};
  /// Of `derived`, with Options::explain: the keys of the file without each of which the value would be another one.
  std::vector<std::string> follows_from = {};

  /// "line 3", "line 3, which says false", "line 3 (auto)", "derived from train_batch_size", "derived" or "default".
  [[nodiscard]] std::string from() const;
};

/// A ds_config.json that was read: the configuration, and where each of its values comes from. A value type.
struct ConfigFile {
  struct Options {
    std::uint32_t world_size = 1;  ///< number of ranks of the run; needed for the batch sizes
    /// Unknown keys are errors, because most are misspelled. Lenient: an unknown key is a note in a block that has no
    /// effect here, such as hybrid_engine or autotuning, and so is an unknown block of the top level, such as a
    /// trainer's own, unless its name is near one that is known.
    bool lenient = false;
    bool explain = false;  ///< fill KeyOrigin::follows_from: the text is read once more for each of its keys
  };

  Config config;
  /// Of every supported key that says something about this configuration, in the order of config_keys(). Their values
  /// are those of Config::to_json(), and what the engine uses for overlap_comm and tile_elements where not given.
  std::vector<KeyOrigin> origins;

  /// Reads a file of at most 16 MiB. Errors: as Config::from_file().
  [[nodiscard]] static Result<ConfigFile> read(const std::filesystem::path& file, const Options& options);
  /// Reads a text; `name` stands for the file's name in messages. A dictionary is the text of its JSON.
  [[nodiscard]] static Result<ConfigFile> parse(std::string_view text, const std::string& name,
                                                const Options& options);
  /// What DeepSpeed's --deepspeed_config takes: the path of a file that exists, else its text in urlsafe base64.
  ///
  /// Errors: not_found, for what is neither; as read().
  [[nodiscard]] static Result<ConfigFile> of_argument(const std::string& argument, const Options& options);
};

}  // namespace penstock::zero
