// The editor of poses: a dialog in which the 18 body points of people are dragged by mouse, finger or arrow keys. It
// opens in `place`, and over the whole page when more room is wanted.
// `featherweight.editPose({ pose, size: [width, height], image, place })` resolves to the pose, or to null when it is
// closed.
(() => {
  const fw = window.featherweight;
  const { element } = fw;
  const BODY = "pose_keypoints_2d";
  const REST = ["hand_left_keypoints_2d", "hand_right_keypoints_2d", "face_keypoints_2d"];
  const POINTS = [
    fw.t`Nose`, fw.t`Neck`, fw.t`Right shoulder`, fw.t`Right elbow`, fw.t`Right wrist`, fw.t`Left shoulder`, fw.t`Left elbow`, fw.t`Left wrist`, fw.t`Right hip`,
    fw.t`Right knee`, fw.t`Right ankle`, fw.t`Left hip`, fw.t`Left knee`, fw.t`Left ankle`, fw.t`Right eye`, fw.t`Left eye`, fw.t`Right ear`, fw.t`Left ear`,
  ];
  // Pairs of points, in the order of their colors; the same as LIMBS of poses.py.
  const LIMBS = [
    [1, 2], [1, 5], [2, 3], [3, 4], [5, 6], [6, 7], [1, 8], [8, 9], [9, 10], [1, 11], [11, 12], [12, 13], [1, 0],
    [0, 14], [14, 16], [0, 15], [15, 17],
  ];
  // A person who stands, as shares of a box; the person's right is on our left.
  const STANDING = [
    [0.5, 0.1], [0.5, 0.22], [0.3, 0.22], [0.2, 0.37], [0.14, 0.5], [0.7, 0.22], [0.8, 0.37], [0.86, 0.5], [0.37, 0.52],
    [0.36, 0.74], [0.35, 0.95], [0.63, 0.52], [0.64, 0.74], [0.65, 0.95], [0.43, 0.06], [0.57, 0.06], [0.34, 0.09], [0.66, 0.09],
  ];
  const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const DOT_PX = 5; // on the screen; what can be grasped is larger
  const GRASP_PX = 12;

  const color = (number) => `hsl(${number * 20},100%,50%)`;
  const shape = (name, attributes = {}) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const within = (value, most) => Math.min(Math.max(value, 0), most);
  const triples = (values) => values.reduce((found, value, place) => (place % 3 ? found : [...found, values.slice(place, place + 3)]), []);

  // Points as {x, y, on} in pixels; coordinates of which none is above 1 are shares of the canvas.
  const readPoints = (values, [width, height]) => {
    if (!values?.length) return [];
    if (!Array.isArray(values) || values.length % 3 || !values.every(Number.isFinite)) {
      throw new Error(fw.t`The points of a person are numbers in threes: x, y and how sure the point is.`);
    }
    const isShare = triples(values).every(([x, y]) => Math.abs(x) <= 1 && Math.abs(y) <= 1);
    const scale = isShare ? [width, height] : [1, 1];
    return triples(values).map(([x, y, sure]) => ({ x: x * scale[0], y: y * scale[1], on: sure > 0 }));
  };

  // Where points that were not found would be: the standing person in the box of those that were.
  const complete = (points, [width, height]) => {
    const known = STANDING.map((share, place) => [share, points[place]]).filter(([, point]) => point?.on);
    const place = [0, 1].map((axis) => {
      const shares = known.map(([share]) => share[axis]);
      const found = known.map(([, point]) => (axis ? point.y : point.x));
      const side = axis ? height : width;
      const span = Math.max(...shares) - Math.min(...shares);
      const scale = known.length > 1 && span > 0.1 ? (Math.max(...found) - Math.min(...found)) / span : side * 0.5;
      const start = known.length ? Math.min(...found) - Math.min(...shares) * scale : side * 0.25;
      return (share) => within(start + share * scale, side);
    });
    return STANDING.map(([x, y], number) => {
      const point = points[number];
      return point && (point.on || point.x || point.y) ? point : { x: place[0](x), y: place[1](y), on: false };
    });
  };

  const personOf = (given, size) => {
    if (typeof given !== "object" || given === null) throw new Error(fw.t`A person is an object with its points.`);
    const rest = Object.fromEntries(REST.map((part) => [part, readPoints(given[part], size)]));
    return { body: complete(readPoints(given[BODY], size), size), rest };
  };

  // One pose, or the first of a list, as routes give and take it.
  const readPose = (given) => {
    const pose = Array.isArray(given) ? given[0] : given;
    const size = [pose?.canvas_width, pose?.canvas_height];
    if (!Array.isArray(pose?.people) || !size.every((side) => side >= 1 && side <= 8192)) {
      throw new Error(fw.t`This is no pose: it has a list of people, and a canvas of 1 to 8192 pixels a side.`);
    }
    return { size, people: pose.people.map((person) => personOf(person, size)) };
  };

  const writePoints = (points) => points.flatMap(({ x, y, on }) => [Math.round(x * 10) / 10, Math.round(y * 10) / 10, on ? 1 : 0]);
  const writePose = ({ size, people }) => ({
    people: people.map(({ body, rest }) => ({
      [BODY]: writePoints(body),
      ...Object.fromEntries(REST.filter((part) => rest[part].length).map((part) => [part, writePoints(rest[part])])),
    })),
    canvas_width: size[0],
    canvas_height: size[1],
  });

  const standing = ([width, height], number) => {
    const side = Math.min(width, height) * 0.9;
    const left = (width - side * 0.6) / 2 + (number * side) / 8;
    const body = STANDING.map(([x, y]) => ({ x: within(left + x * side * 0.6, width), y: within((height - side) / 2 + y * side, height), on: true }));
    return { body, rest: Object.fromEntries(REST.map((part) => [part, []])) };
  };

  class Editor {
    constructor(pose, image) {
      this.pose = pose;
      this.image = image;
      this.chosen = null; // {person, point}: numbers
      this.picture = shape("svg", { class: "controlnet-pose-picture", role: "group", "aria-label": fw.t`Body points` });
      this.json = element("textarea", { rows: 6, spellcheck: false, attributes: { "aria-label": fw.t`Pose as JSON` } });
      this.status = element("p", { className: "controlnet-problem", attributes: { role: "status" } });
      this.hide = this.button(fw.t`Hide point`, () => this.toggle());
      this.remove = this.button(fw.t`Remove person`, () => this.removePerson());
      this.resized = new ResizeObserver(() => this.place());
      this.resized.observe(this.picture);
    }

    button(text, act, className = "controlnet-button") {
      const made = element("button", { type: "button", textContent: text, className });
      made.addEventListener("click", act);
      return made;
    }

    addPerson() {
      this.pose.people.push(standing(this.pose.size, this.pose.people.length));
      this.build();
      this.choose(this.pose.people.length - 1, 0);
    }

    removePerson() {
      if (!this.chosen) return;
      this.pose.people.splice(this.chosen.person, 1);
      this.chosen = null;
      this.build();
    }

    // A hidden point is not drawn on the map; it stays here as a ring.
    toggle() {
      if (!this.chosen) return;
      const point = this.pose.people[this.chosen.person].body[this.chosen.point];
      point.on = !point.on;
      this.place();
    }

    choose(person, point) {
      this.chosen = { person, point };
      this.place();
    }

    readJson() {
      this.status.textContent = "";
      try {
        this.pose = readPose(JSON.parse(this.json.value));
        this.chosen = null;
        this.build();
      } catch (error) {
        this.status.textContent = error instanceof SyntaxError ? fw.text(fw.t`This is no JSON.`) : error.message;
      }
    }

    // All shapes again, as people have come or gone.
    build() {
      const [width, height] = this.pose.size;
      this.picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.picture.style.aspectRatio = `${width} / ${height}`;
      this.picture.style.maxWidth = `min(100%,${(60 * width) / height}vh)`;
      this.picture.replaceChildren(shape("rect", { width, height, class: "controlnet-pose-ground" }));
      if (this.image) this.picture.append(shape("image", { href: this.image, width, height, preserveAspectRatio: "none", opacity: 0.5 }));
      this.shapes = this.pose.people.map((person, number) => this.shapesOf(person, number));
      this.place();
    }

    shapesOf(person, number) {
      const lines = LIMBS.map((_, limb) => shape("line", { stroke: color(limb), class: "controlnet-pose-limb" }));
      const others = REST.flatMap((part) => person.rest[part]).map((point) => [shape("circle", { class: "controlnet-pose-other" }), point]);
      const points = POINTS.map((name, place) => {
        const dot = shape("circle", { class: "controlnet-pose-dot" });
        const grasp = shape("circle", { class: "controlnet-pose-point", role: "button", tabindex: 0 });
        grasp.setAttribute("aria-label", [fw.text(fw.t`Person ${number + 1}`), fw.text(name)].join(": "));
        grasp.addEventListener("focus", () => this.choose(number, place));
        grasp.addEventListener("keydown", (event) => this.onKey(event, person.body[place]));
        this.drag(grasp, () => [person.body[place]]);
        return [dot, grasp];
      });
      for (const line of lines) this.drag(line, () => [...person.body, ...REST.flatMap((part) => person.rest[part])]);
      this.picture.append(...lines, ...others.map(([dot]) => dot), ...points.map(([dot]) => dot), ...points.map(([, grasp]) => grasp));
      return { lines, others, points };
    }

    onKey(event, point) {
      const move = MOVES[event.key];
      if (move) this.move([point], move[0] * (event.shiftKey ? 10 : 1), move[1] * (event.shiftKey ? 10 : 1));
      else if (event.key === "Delete" || event.key === "Enter" || event.key === " ") this.toggle();
      else return;
      event.preventDefault();
      event.stopPropagation();
    }

    // Points follow the pointer that has grasped a shape; a limb moves its whole person.
    drag(grasped, pointsOf) {
      let last = null;
      const at = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(this.picture.getScreenCTM().inverse());
      grasped.addEventListener("pointerdown", (event) => {
        grasped.setPointerCapture(event.pointerId);
        last = at(event);
      });
      grasped.addEventListener("pointermove", (event) => {
        if (!last) return;
        const now = at(event);
        this.move(pointsOf(), now.x - last.x, now.y - last.y);
        last = now;
      });
      for (const name of ["pointerup", "pointercancel"]) grasped.addEventListener(name, () => (last = null));
    }

    // Several points keep their places to each other, also beyond the border.
    move(points, across, down) {
      const [width, height] = points.length > 1 ? [Infinity, Infinity] : this.pose.size;
      const least = points.length > 1 ? -Infinity : 0;
      for (const point of points) {
        point.x = Math.min(Math.max(point.x + across, least), width);
        point.y = Math.min(Math.max(point.y + down, least), height);
      }
      this.place();
    }

    // Every shape to where its points are.
    place() {
      if (!this.shapes) return;
      const unit = this.pose.size[0] / (this.picture.clientWidth || this.pose.size[0]); // pixels of the pose for one of the screen
      this.shapes.forEach(({ lines, others, points }, number) => {
        const { body } = this.pose.people[number];
        lines.forEach((line, limb) => {
          const [start, end] = LIMBS[limb].map((place) => body[place]);
          const ends = { x1: start.x, y1: start.y, x2: end.x, y2: end.y, "stroke-width": 6 * unit };
          for (const [key, value] of Object.entries(ends)) line.setAttribute(key, value);
          line.style.display = start.on && end.on ? "" : "none";
        });
        others.forEach(([dot, point]) => this.centre(dot, point, point.on ? 2 * unit : 0));
        points.forEach(([dot, grasp], place) => {
          const point = body[place];
          this.centre(dot, point, DOT_PX * unit);
          this.centre(grasp, point, GRASP_PX * unit);
          dot.setAttribute("fill", point.on ? color(place) : "none");
          dot.setAttribute("stroke", point.on ? "none" : color(place));
          grasp.classList.toggle("is-chosen", this.chosen?.person === number && this.chosen.point === place);
          grasp.setAttribute("aria-pressed", String(point.on));
        });
      });
      const chosen = this.chosen && this.pose.people[this.chosen.person]?.body[this.chosen.point];
      this.hide.disabled = this.remove.disabled = !chosen;
      this.hide.textContent = chosen && !chosen.on ? fw.t`Show point` : fw.t`Hide point`;
      if (document.activeElement !== this.json) this.json.value = JSON.stringify(writePose(this.pose));
    }

    centre(circle, point, radius) {
      circle.setAttribute("cx", point.x);
      circle.setAttribute("cy", point.y);
      circle.setAttribute("r", radius);
    }
  }

  fw.editPose = ({ pose, size, image, place }) =>
    new Promise((done) => {
      const editor = new Editor(pose ? readPose(pose) : { size, people: [] }, image);
      const dialog = element("dialog", { className: "controlnet-pose", attributes: { "aria-labelledby": "controlnet_pose_title" } });
      let result = null;
      const use = editor.button(fw.t`Use this pose`, () => {
        result = writePose(editor.pose);
        dialog.close();
      });
      use.classList.add("controlnet-primary");
      let isMoving = false; // to the whole page
      const larger = editor.button(fw.t`Larger`, () => {
        isMoving = true;
        dialog.close();
        larger.remove();
        document.body.append(dialog);
        dialog.showModal();
      });
      dialog.append(
        element("h2", { id: "controlnet_pose_title", textContent: fw.t`Edit the pose` }),
        element("p", { textContent: fw.t`Drag points, or move the chosen one by arrow keys (Shift: ten pixels). A limb drags its person.` }),
        editor.picture,
        element("div", { className: "controlnet-row" }, editor.button(fw.t`Add person`, () => editor.addPerson()), editor.remove, editor.hide),
        element("details", {}, element("summary", { textContent: "JSON" }), editor.json, editor.button(fw.t`Read this JSON`, () => editor.readJson())),
        editor.status,
        element("footer", { className: "controlnet-row" }, larger, editor.button(fw.t`Cancel`, () => dialog.close()), use),
      );
      dialog.addEventListener("keydown", (event) => {
        if (event.key !== "Escape") return;
        event.stopPropagation(); // it would interrupt a running job
        event.preventDefault();
        dialog.close();
      });
      dialog.addEventListener("close", () => {
        if (isMoving) return (isMoving = false);
        editor.resized.disconnect();
        dialog.remove();
        done(result);
      });
      place.append(dialog);
      dialog.show();
      editor.build();
      if (!editor.pose.people.length) editor.addPerson();
    });
})();
