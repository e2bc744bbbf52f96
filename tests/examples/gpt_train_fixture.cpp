#include "gpt_train_fixture.hpp"

#include <fstream>
#include <iterator>

namespace gpt::test {

std::string digest_in(const std::string& output) {
  const std::string label = "digest of all master weights  ";
  const auto at = output.find(label);
  return at == std::string::npos ? "" : output.substr(at + label.size(), 32);
}

std::string GptTrain::arguments(const std::string& change, const std::string& key,
                                const std::string& optimizer_device) const {
  const std::string text_file = (directory_.path() / "text").string();
  std::ofstream text(text_file);
  for (int i = 0; i < 4000; ++i) text << "the quick brown fox jumps over the lazy dog " << i << "\n";
  const std::string config_file = (directory_.path() / "config.json").string();
  std::ofstream config(config_file);
  config
      << R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "bf16": {"enabled": true},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    ")"
      << key << R"(": {"stage": 3, "param_persistence_threshold": 0,
      "offload_param": {"device": "nvme", "nvme_path": ")"
      << swap() << R"("},
      "offload_optimizer": {"device": ")"
      << optimizer_device << R"(", "nvme_path": ")" << swap() << R"("}})" << change << "}";
  return "--layers 1 --width 64 --heads 2 --context 32 --steps 2 --text " + text_file + " --config " +
         config_file;
}

std::string GptTrain::with_replaced(const std::string& all, const std::string& old,
                                    const std::string& by) const {
  const std::string file = (directory_.path() / "config.json").string();
  std::ifstream in(file);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  text.replace(text.find(old), old.size(), by);
  std::ofstream(file) << text;
  return all;
}

void GptTrain::expect_output_error(const std::string& redirection) const {
  const Outcome outcome = train(arguments() + " " + redirection);
  EXPECT_EQ(outcome.status, 1) << redirection << ": " << outcome.output;
  EXPECT_NE(outcome.output.find("error: standard output cannot be written"), std::string::npos)
      << redirection << ": " << outcome.output;
}

void GptTrain::expect_refused(const Outcome& outcome, int status,
                              std::initializer_list<const char*> words) const {
  EXPECT_EQ(outcome.status, status) << outcome.output;
  EXPECT_NE(outcome.output.find("error: "), std::string::npos) << outcome.output;
  for (const char* word : words)
    EXPECT_NE(outcome.output.find(word), std::string::npos) << word << " in\n" << outcome.output;
  EXPECT_EQ(outcome.output.find("step 1/"), std::string::npos) << "no partial claims\n" << outcome.output;
  EXPECT_EQ(swap_.entry_count(), 0u);
}

}  // namespace gpt::test
