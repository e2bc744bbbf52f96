#pragma once

#include <penstock/cpu_adam/adam.hpp>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace penstock::bench {

inline const std::map<std::string, StateFormat> formats = {{"fp32", StateFormat::fp32},
                                                           {"split", StateFormat::split},
                                                           {"split_bf16", StateFormat::split_bf16},
                                                           {"split_q8", StateFormat::split_q8}};

/// Runs once over its data, on these workers.
struct Contestant {
  std::string name;
  std::string against;       ///< the contestant that its rate is divided by
  double bytes_per_element;  ///< that its streams read and write
  std::function<void(Workers&)> run;
};

/// What is measured, and the memory that it works on: as many elements in each format asked for, with one
/// bf16 gradient for all.
///
///   floor        what the fp32 format reads and writes, multiplied by a constant
///   plain loop   AdamW in fp32 states as one writes it down, vectorised by the compiler
///   fp32, …      adam_step: bf16 gradient in, bf16 parameter out
///   tail fp32, … all that a step does to a gradient that has arrived: its norm, which is not finite when it
///   is
///                not, clip and unscale, Adam, bf16 out; in two passes, of which the first reads the gradient
///   passes       the same in fp32 states by our own kernels in a pass each: norm, cast to fp32, clip and
///                unscale, Adam from fp32 to fp32, cast to bf16
class Contest {
 public:
  struct Options {
    std::uint64_t elements;
    std::vector<StateFormat> formats;  ///< beside fp32, which always takes part
    bool tail;                         ///< tails and passes too
    Isa isa;
  };
  explicit Contest(const Options& options);
  ~Contest();
  Contest(const Contest&) = delete;
  Contest& operator=(const Contest&) = delete;

  [[nodiscard]] const std::vector<Contestant>& contestants() const { return contestants_; }

 private:
  struct Streams;
  struct Tensors;
  struct Passes;

  void add_floor(const Tensors& tensors);
  void add_plain_loop(const Tensors& tensors);
  void add_adam(const Tensors& tensors);
  void add_tail(const Tensors& tensors);
  void add_passes(const Tensors& tensors);

  Options options_;
  std::uint64_t step_ = 0;
  std::unique_ptr<Streams> streams_;
  std::vector<std::unique_ptr<Tensors>> tensors_;
  std::unique_ptr<Passes> passes_;
  std::vector<Contestant> contestants_;
};

}  // namespace penstock::bench
