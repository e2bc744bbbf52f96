// gpt_plain: trains the example's model in ordinary memory, without Penstock. It shows the cost of the model and its
// arithmetic alone; the sizes and rates of model_config.hpp were chosen with it.
#include "gpt/host_kernels.hpp"
#include "gpt/host_ops.hpp"
#include "gpt/model.hpp"
#include "gpt/rank_threads.hpp"
#include "gpt/text.hpp"

#include "measure/run_main.hpp"

#include <penstock/base/compute.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace gpt {
namespace {

using penstock::DType;
using penstock::Result;

/// Runs each operation at once.
class EagerQueue final : public penstock::HostQueue {
 public:
  void enqueue(std::function<void()> operation, const penstock::OperationCost&) override { operation(); }
};

/// A bf16 number for every element of the model, unit after unit.
class Flat {
 public:
  explicit Flat(const ModelDescription& model) : values_(model.element_count().value()) {
    std::uint64_t first = 0;
    for (const UnitDescription& unit : model.units()) {
      for (const ParameterDescription& parameter : unit.parameters) {
        first_.push_back(first);
        first += parameter.count.value();
      }
      units_end_.push_back(first_.size());
    }
  }
  std::vector<std::uint16_t>& values() { return values_; }
  std::uint64_t first(ParameterId id) const {
    return first_[(id.unit == 0 ? 0 : units_end_[id.unit - 1]) + id.index];
  }
  DeviceTensor tensor(const ModelDescription& model, ParameterId id) {
    return {DeviceSpan(penstock::DeviceAddress(reinterpret_cast<std::uintptr_t>(&values_[first(id)])),
                       *bytes_of(model.parameter(id).count, DType::bf16)),
            DType::bf16};
  }

 private:
  std::vector<std::uint16_t> values_;
  std::vector<std::uint64_t> first_;
  std::vector<std::size_t> units_end_;
};

/// Ends the program if a rank fails.
void require(const Result<void>& result) {
  if (result) return;
  std::fprintf(stderr, "error: %s\n", result.error().message().c_str());
  std::exit(1);
}

std::vector<ParameterId> tensors_of(const ModelDescription& model, std::size_t unit) {
  std::vector<ParameterId> ids;
  for (std::size_t index = 0; index < model.units()[unit].parameters.size(); ++index) {
    ids.push_back({unit, index});
  }
  ids.insert(ids.end(), model.units()[unit].uses.begin(), model.units()[unit].uses.end());
  return ids;
}

/// Linear warm-up, then linear decay: DeepSpeed's WarmupDecayLR with warmup_type "linear".
float learning_rate(const TrainingConfig& training, std::uint32_t step) {
  const auto ratio = [](std::uint32_t part, std::uint32_t whole) {
    return static_cast<float>(part) / static_cast<float>(whole);
  };
  const std::uint32_t warmup = training.warmup_steps;
  return training.learning_rate *
         (step < warmup ? ratio(step + 1, warmup) : ratio(training.steps - step, training.steps - warmup));
}

/// The state that the ranks share: the weights, and AdamW's state, of which each rank updates its slice.
struct Shared {
  Shared(const ModelDescription& model, const TrainingConfig& training)
      : weights(model),
        master(weights.values().size()),
        m(master.size()),
        v(master.size()),
        decay(master.size()),
        sums(training.ranks),
        squares(training.ranks),
        losses(training.ranks),
        arrived(training.ranks) {
    for (std::size_t unit = 0; unit < model.units().size(); ++unit) {
      for (std::size_t index = 0; index < model.units()[unit].parameters.size(); ++index) {
        const ParameterId id{unit, index};
        const auto values = std::span(master).subspan(weights.first(id), model.parameter(id).count.value());
        model.initial_values(id, 0, values);
        if (model.parameter(id).weight_decay) {
          std::fill_n(decay.begin() + static_cast<std::ptrdiff_t>(weights.first(id)), values.size(),
                      training.weight_decay);
        }
      }
    }
    host::store_bf16(master.data(), weights.values().data(), master.size(), GradientWrite::overwrite);
  }

  Flat weights;
  std::vector<float> master, m, v, decay;
  std::vector<std::vector<float>> sums;  ///< per rank: the sums of its gradients over its micro-batches
  std::vector<double> squares, losses;   ///< per rank
  std::barrier<> arrived;
};

class Rank {
 public:
  Rank(std::uint32_t rank, const ModelConfig& config, const TrainingConfig& training, const Text& text,
       Shared& shared)
      : rank_(rank),
        training_(training),
        text_(text),
        shared_(shared),
        stream_(StreamHandle::of(queue_)),
        ops_(make_host_ops(
            allocator_.allocate(*bytes_of(ModelDescription(config).scratch_count(), DType::fp32)).value())),
        model_(Model::create(config, *ops_).value()),
        activations_(Activations::allocate(config, activation_options(training), allocator_).value().front()),
        gradients_(model_.description()) {
    shared_.sums[rank_].resize(shared_.master.size());
    const std::uint64_t slice = penstock::ceil_divide(shared_.master.size(), training_.ranks);
    begin_ = std::min<std::uint64_t>(rank_ * slice, shared_.master.size());
    end_ = std::min<std::uint64_t>(begin_ + slice, shared_.master.size());
  }

  struct Outcome {
    double loss, gradient_norm;  ///< over all ranks
  };

  Outcome step(std::uint32_t step) {
    std::vector<float>& sum = shared_.sums[rank_];
    shared_.losses[rank_] = 0;
    for (std::uint32_t micro_batch = 0; micro_batch < training_.micro_batches; ++micro_batch) {
      shared_.losses[rank_] += run(step, micro_batch) / training_.micro_batches;
      widened_.resize(sum.size());
      host::widen_bf16(gradients_.values().data(), widened_.data(), sum.size());
      host::store_fp32(widened_.data(), sum.data(), sum.size(),
                       micro_batch == 0 ? GradientWrite::overwrite : GradientWrite::accumulate);
    }
    shared_.arrived.arrive_and_wait();
    average();
    shared_.arrived.arrive_and_wait();
    const Outcome outcome{.loss = penstock::sum_tree(shared_.losses) / training_.ranks,
                          .gradient_norm = std::sqrt(penstock::sum_tree(shared_.squares))};
    update(step, outcome.gradient_norm);
    shared_.arrived.arrive_and_wait();
    return outcome;
  }

 private:
  /// Runs forward and backward of one micro-batch. Returns its mean loss.
  double run(std::uint32_t step, std::uint32_t micro_batch) {
    const std::size_t rows = activations_.tokens.size().value();
    text_.batch(training_.data_seed, {step, micro_batch, rank_},
                {training_.sequences, model_.config().context}, bytes(activations_.tokens, rows),
                bytes(activations_.targets, rows));

    const std::size_t units = model_.description().units().size();
    for (std::size_t unit = 0; unit < units; ++unit) {
      require(model_.forward(stream_, unit, weights(unit), activations_));
    }
    std::vector<ParameterId> written;
    for (std::size_t unit = units; unit-- > 0;) {
      require(model_.backward(stream_, unit, weights(unit), gradients(unit, written), activations_,
                              1.0f / static_cast<float>(training_.micro_batches)));
    }
    const auto* losses =
        reinterpret_cast<const float*>(static_cast<std::uintptr_t>(activations_.losses.bytes.address()));
    double sum = 0;
    for (std::size_t row = 0; row < rows; ++row) sum += losses[row];
    return sum / static_cast<double>(rows);
  }

  /// Writes the mean over the ranks of this rank's slice to sums[0], and the slice's sum of squares to squares[rank].
  void average() {
    std::vector<float>& mean = shared_.sums[0];
    const float share = 1.0f / static_cast<float>(training_.ranks);
    double squares = 0;
    for (std::uint64_t i = begin_; i < end_; ++i) {
      float sum = 0;
      for (const std::vector<float>& of_rank : shared_.sums) sum += of_rank[i];
      mean[i] = sum * share;
      squares += double{mean[i]} * mean[i];
    }
    shared_.squares[rank_] = squares;
  }

  /// AdamW on this rank's slice (Loshchilov, Hutter 2019).
  void update(std::uint32_t step, double norm) {
    const float clip = static_cast<float>(std::min(1.0, training_.gradient_norm_max / norm));
    const float rate = learning_rate(training_, step);
    const auto correction = [&](float beta) {
      return static_cast<float>(1 - std::pow(double{beta}, step + 1));
    };
    const float correction1 = correction(training_.beta1), correction2 = correction(training_.beta2);
    for (std::uint64_t i = begin_; i < end_; ++i) {
      const float g = shared_.sums[0][i] * clip;
      float &m = shared_.m[i], &v = shared_.v[i], &w = shared_.master[i];
      m = training_.beta1 * m + (1 - training_.beta1) * g;
      v = training_.beta2 * v + (1 - training_.beta2) * g * g;
      w -= rate * shared_.decay[i] * w;
      w -= rate * (m / correction1) / (std::sqrt(v / correction2) + training_.epsilon);
    }
    host::store_bf16(&shared_.master[begin_], &shared_.weights.values()[begin_], end_ - begin_,
                     GradientWrite::overwrite);
  }

  std::vector<DeviceTensor> weights(std::size_t unit) {
    std::vector<DeviceTensor> tensors;
    for (const ParameterId id : tensors_of(model_.description(), unit)) {
      tensors.push_back(shared_.weights.tensor(model_.description(), id));
    }
    return tensors;
  }

  /// The first user of a parameter overwrites its gradient, a later one adds to it.
  std::vector<Gradient> gradients(std::size_t unit, std::vector<ParameterId>& written) {
    std::vector<Gradient> result;
    for (const ParameterId id : tensors_of(model_.description(), unit)) {
      const bool again = std::find(written.begin(), written.end(), id) != written.end();
      result.push_back({gradients_.tensor(model_.description(), id),
                        again ? GradientWrite::accumulate : GradientWrite::overwrite});
      written.push_back(id);
    }
    return result;
  }

  static std::span<std::uint8_t> bytes(DeviceSpan span, std::size_t count) {
    return {reinterpret_cast<std::uint8_t*>(static_cast<std::uintptr_t>(span.address())), count};
  }

  std::uint32_t rank_;
  const TrainingConfig& training_;
  const Text& text_;
  Shared& shared_;
  EagerQueue queue_;
  StreamHandle stream_;
  HostAllocator allocator_;
  std::unique_ptr<Ops> ops_;
  Model model_;
  Activations activations_;
  Flat gradients_;
  std::vector<float> widened_;
  std::uint64_t begin_ = 0, end_ = 0;  // this rank's slice of the model
};

Result<void> train(const ModelConfig& config, const TrainingConfig& training, const Text& text) {
  const ModelDescription description(config);
  Shared shared(description, training);
  const double tokens =
      double{1} * training.ranks * training.micro_batches * training.sequences * config.context;
  std::printf("%s parameters, %.0f tokens a step, %s of text, %s, activations %s a rank\n",
              to_string(description.element_count()).c_str(), tokens, to_string(text.size()).c_str(),
              host_matmul_name(), to_string(Activations::size(config, activation_options(training))).c_str());

  const auto start = std::chrono::steady_clock::now();
  const auto run_rank = [&](std::uint32_t number) {
    Rank rank(number, config, training, text, shared);
    for (std::uint32_t step = 0; step < training.steps; ++step) {
      const Rank::Outcome outcome = rank.step(step);
      if (number != 0) continue;
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      std::printf("step %u/%u  loss %.3f  norm %.2f  %.0f tok/s  %.1f s\n", step + 1, training.steps,
                  outcome.loss, outcome.gradient_norm, tokens * (step + 1) / elapsed.count(),
                  elapsed.count());
      std::fflush(stdout);
    }
  };
  return run_ranks(training.ranks, run_rank);
}

int run(int argc, char** argv) {
  ModelConfig config;
  TrainingConfig training;
  std::optional<std::filesystem::path> file;
  CLI::App app("Trains the example's GPT in ordinary memory, without Penstock");
  app.add_option("--text", file, "train on this file; default: the system's licences");
  app.add_option("--layers", config.layers, "blocks")->capture_default_str();
  app.add_option("--width", config.width, "model width")->capture_default_str();
  app.add_option("--heads", config.heads, "attention heads")->capture_default_str();
  app.add_option("--context", config.context, "tokens per sequence")->capture_default_str();
  app.add_option("--ranks", training.ranks, "threads")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--micro-batches", training.micro_batches, "per step and rank")->capture_default_str();
  app.add_option("--sequences", training.sequences, "a micro-batch")->capture_default_str();
  app.add_option("--steps", training.steps, "optimizer steps")->capture_default_str();
  app.add_option("--warmup-steps", training.warmup_steps, "linear warm-up")->capture_default_str();
  app.add_option("--learning-rate", training.learning_rate,
                 "maximum learning rate, reached after the warm-up")
      ->capture_default_str();
  app.add_option("--beta2", training.beta2, "decay rate of the second moment")->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  const auto ran = [&]() -> Result<void> {
    PENSTOCK_TRY(config.validate());
    PENSTOCK_TRY(training.validate());
    PENSTOCK_TRY_ASSIGN(const auto text, Text::load(file, config.context));
    return train(config, training, text);
  }();
  if (ran) return 0;
  std::fprintf(stderr, "error: %s\n", ran.error().message().c_str());
  return 1;
}

}  // namespace
}  // namespace gpt

int main(int argc, char** argv) {
  return penstock::measure::run_main([&] { return gpt::run(argc, argv); });
}
