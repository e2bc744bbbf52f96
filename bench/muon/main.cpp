// What a step of Muon takes: the whole of it, against the products of its iterations by the BLAS with threads of its
// own.
#include "cpu_adam/muon_step.hpp"
#include "huge_buffer.hpp"
#include "measure/command_line.hpp"
#include "measure/machine.hpp"
#include "measure/run_main.hpp"
#include "measure/statistics.hpp"

#include <penstock/base/time.hpp>

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock::bench {
namespace {

using cpu_adam::MatrixProduct;
using cpu_adam::MatrixShape;

struct Arguments {
  std::uint64_t rows = 2048, columns = 5504;
  std::uint32_t threads = 2, rounds = 11;
};

/// The three products of each iteration, each by one call for whole matrices.
void multiply(const MatrixProduct& product, MatrixShape shape, const float* x, float* gram, float* polynomial,
              float* next) {
  const bool is_wide = shape.rows <= shape.columns;
  const std::uint64_t side = std::min(shape.rows, shape.columns), columns = shape.columns;
  for (int i = 0; i < 5; ++i) {
    product.add({side, side}, std::max(shape.rows, columns), 1, {x, columns, !is_wide}, {x, columns, is_wide},
                0, gram, side);
    product.add({side, side}, side, 1, {gram, side}, {gram, side}, 0, polynomial, side);
    const MatrixProduct::Operand square{polynomial, side}, matrix{x, columns};
    product.add(shape, side, 1, is_wide ? square : matrix, is_wide ? matrix : square, 0, next, columns);
  }
}

/// Of the library that multiplies; nothing where it has no such function.
void let_blas_have_threads(const MatrixProduct& product, std::uint32_t threads) {
  void* const library = dlopen(product.name().c_str(), RTLD_NOW | RTLD_NOLOAD);
  for (const char* const name : {"openblas_set_num_threads", "MKL_Set_Num_Threads"}) {
    if (void* const set = library == nullptr ? nullptr : dlsym(library, name))
      reinterpret_cast<void (*)(int)>(set)(static_cast<int>(threads));
  }
}

template <class Work>
double seconds_of(const Work& work) {
  const TimePoint began = Clock::steady().now();
  work();
  return std::chrono::duration<double>(Clock::steady().now() - began).count();
}

Result<void> run(const Arguments& arguments) {
  PENSTOCK_TRY_ASSIGN(const MatrixProduct* product, MatrixProduct::instance());
  PENSTOCK_TRY_ASSIGN(auto workers, parallel::Workers::create({.threads = arguments.threads}));
  const MatrixShape shape{arguments.rows, arguments.columns};
  const ByteCount fp32 = ByteCount(4) * shape.elements().value();
  PENSTOCK_TRY_ASSIGN(
      const ByteCount state_bytes,
      cpu_adam::tile_bytes({cpu_adam::StateFormat::fp32, cpu_adam::Optimizer::muon}, shape.elements()));
  HugeBuffer state(state_bytes), gradient(fp32), parameter(fp32),
      scratch(cpu_adam::muon_scratch_bytes(shape));
  const std::span<float> values = gradient.span().as<float>();
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(i * 2654435761u % 2001) / 1000 - 1;
  const cpu_adam::OptimizerTile tile{.state = state.span(),
                                     .gradient = gradient.span(),
                                     .parameter = parameter.span(),
                                     .elements = shape.elements(),
                                     .gradient_dtype = DType::fp32,
                                     .parameter_dtype = DType::fp32,
                                     .optimizer = cpu_adam::Optimizer::muon};
  const std::span<float> memory = scratch.span().as<float>();
  const std::size_t elements = shape.elements().value(), square = (memory.size() - 2 * elements) / 2;

  std::vector<double> steps, products;
  Result<void> outcome = ok();
  for (std::uint32_t round = 0; round <= arguments.rounds; ++round) {
    const double step = seconds_of([&] {
      const auto updated =
          cpu_adam::muon_step({}, shape, 1, tile, scratch.span(), *product, {.workers = &workers});
      if (!updated) outcome = updated.error();
    });
    PENSTOCK_TRY(outcome);
    std::copy(values.begin(), values.end(), memory.begin());
    let_blas_have_threads(*product, arguments.threads);
    const double alone = seconds_of([&] {
      multiply(*product, shape, memory.data(), memory.data() + 2 * elements,
               memory.data() + 2 * elements + square, memory.data() + elements);
    });
    let_blas_have_threads(*product, 1);
    if (round == 0) continue;
    steps.push_back(step);
    products.push_back(alone);
  }
  const measure::Machine machine = measure::describe_machine();
  const double k = static_cast<double>(std::min(shape.rows, shape.columns)),
               n = static_cast<double>(std::max(shape.rows, shape.columns));
  const double operations = 5 * (4 * k * k * n + 2 * k * k * k);
  const auto ratios = measure::ratios(steps, products);
  fmt::print("{}, {} cores, load {:.1f}; {} x {}, {} threads, {}\n", machine.cpu, machine.cores, machine.load,
             shape.rows, shape.columns, arguments.threads, product->name());
  fmt::print("products by the BLAS  {:8.3f} s  {:8.1f} GFLOP/s\n", measure::median(products),
             operations / measure::median(products) / 1e9);
  fmt::print("step of Muon          {:8.3f} s  {:8.3f} of it, spread {:.0f} %\n", measure::median(steps),
             measure::median(ratios), 100 * measure::spread(ratios));
  return ok();
}

int main_body(int argc, char** argv) {
  Arguments arguments;
  measure::CommandLine app("A step of Muon, against the products of its iterations");
  app.add_option("--rows", arguments.rows, "of the matrix").show_default().range(1, 1 << 16);
  app.add_option("--columns", arguments.columns, "of the matrix").show_default().range(1, 1 << 16);
  app.add_option("--threads", arguments.threads, "of both").show_default().range(1, 1024);
  measure::add_rounds(app, arguments.rounds);
  if (const auto status = app.parse(argc, argv)) return *status;
  return measure::exit_status(run(arguments));
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  return penstock::measure::run_main([&] { return penstock::bench::main_body(argc, argv); });
}
