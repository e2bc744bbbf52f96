// Updates parameters with the CPU-Adam alone: state, gradients and parameters are memory of the program.
#include <penstock/cpu_adam/adam.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

using namespace penstock;

int main() {
  constexpr ElementCount count(100'000);
  std::vector<float> parameter(count.value()), gradient(count.value()), initial(count.value(), 1.0f);
  // In this format the fp32 parameter is the master; the state holds m and v.
  constexpr auto format = cpu_adam::StateFormat::moments;
  std::vector<std::byte> state(cpu_adam::tile_bytes(format, count).value().value());
  const cpu_adam::AdamTile tile{.state = HostSpan(std::span(state)),
                                .gradient = ConstHostSpan(std::span(gradient)),
                                .parameter = HostSpan(std::span(parameter)),
                                .elements = count,
                                .gradient_dtype = DType::fp32,
                                .parameter_dtype = DType::fp32,
                                .format = format};
  auto workers = parallel::Workers::create({.threads = 2}).value();
  cpu_adam::initialize_tile(ConstHostSpan(std::span(initial)), DType::fp32, tile, &workers).value();
  for (std::uint64_t step = 1; step <= 300; ++step) {
    for (std::size_t i = 0; i < gradient.size(); ++i)
      gradient[i] = parameter[i] - 0.25f;  // of (p - 0.25)² / 2
    const auto outcome = cpu_adam::adam_step({.learning_rate = 0.01f}, step, /*gradient_factor=*/1, tile,
                                             {.workers = &workers});
    if (!outcome || outcome->first_non_finite_block) return 1;
  }
  std::printf("%.3f\n", parameter[12345]);
  return std::abs(parameter[12345] - 0.25f) < 0.01f ? 0 : 2;
}
