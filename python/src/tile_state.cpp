// penstock.TileState: the state of a Tile in a Runtime, which moves between host memory and disk.
#include "tile_state.hpp"
#include "arguments.hpp"
#include "bind.hpp"
#include "device_adam.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::python {

namespace {

const Choices devices{{"cpu", PENSTOCK_DEVICE_HOST}, {"cuda", PENSTOCK_DEVICE_CUDA}};

}  // namespace

DeviceAdam::DeviceAdam(const std::string& device, std::int32_t ordinal) {
  const std::int32_t number = number_of(device, devices, "DeviceAdam", "device");
  penstock_device_adam* made = nullptr;
  run([&] { return penstock_device_adam_create(number, ordinal, &made); });
  handle_ = {made, "DeviceAdam"};
}

void bind_tile_state(nb::module_& module) {
  nb::class_<DeviceAdam>(module, "DeviceAdam",
                         "Updates tiles in the memory of a device: \"cuda\", or \"cpu\", for tests.")
      .def(nb::init<const std::string&, std::int32_t>(), nb::arg("device"), nb::arg("ordinal"));
  nb::class_<StateLease>(module, "StateLease",
                         "A TileState's bytes in host memory, where they stay meanwhile.")
      .def_prop_ro("address", &StateLease::address)
      .def_prop_ro("nbytes", &StateLease::bytes)
      .def("end", &StateLease::end);
  nb::class_<TileState>(module, "TileState",
                        R"(The state of a penstock.Tile, AdamW's, in a tensor of a Runtime.

The parts of penstock.torch are made of it. Addresses are of `elements` contiguous elements in host memory, which the
caller keeps alive; `master` and moments are float32. _step_tiles() makes steps; the first begins with moments of 0 and
the parameter as master. One thread at a time calls it.)")
      .def(nb::init<const Runtime&, const std::string&, std::uint64_t, const std::string&, const std::string&,
                    std::uint64_t, bool>(),
           nb::arg("runtime"), nb::arg("name"), nb::arg("elements"), nb::arg("dtype"), nb::arg("format"),
           nb::arg("first_element"), nb::arg("in_memory"))
      .def("initialize", nb::overload_cast<Address, const Workers*>(&TileState::initialize),
           nb::arg("parameter"), nb::arg("workers").none(), "Makes it as it is before the first step.")
      .def("lease", &TileState::lease,
           "Its bytes, for a device that updates them. They are loaded, if they are not in memory.")
      .def("enqueue_step", &TileState::enqueue_step, nb::arg("adam"), nb::arg("stream"), nb::arg("state"),
           nb::arg("parameter"), nb::arg("gradient"), nb::arg("gradient_dtype"), nb::arg("number"),
           nb::arg("learning_rate"), nb::arg("beta1"), nb::arg("beta2"), nb::arg("epsilon"),
           nb::arg("weight_decay"), nb::arg("gradient_factor"), nb::arg("non_finite_block"),
           "Makes step `number` on a device, in the order of `stream`. All addresses are of the device, that "
           "of the "
           "state too. complete() follows, once its bytes are back.")
      .def("complete", &TileState::complete, nb::arg("number"))
      .def_prop_ro("is_empty", &TileState::is_empty, "Whether it has no contents.")
      .def("read", &TileState::read, nb::arg("kind"), nb::arg("parameter"), nb::arg("into"),
           "Writes \"master\", \"first_moment\" or \"second_moment\" to `into`, in float32.")
      .def("restore", &TileState::restore, nb::arg("parameter"), nb::arg("master"), nb::arg("first_moment"),
           nb::arg("second_moment"), nb::arg("completed"), nb::arg("workers").none(),
           "Sets all states, after step `completed`, and writes the parameter.")
      .def("reset", &TileState::reset, "Makes it as it was before its first step.")
      .def("prefetch", &TileState::prefetch, "Hints that it is used soon.")
      .def_prop_ro("elements", &TileState::elements)
      .def_prop_ro("completed", &TileState::completed, "The step whose results it holds; 0: none.");
}

}  // namespace penstock::python
