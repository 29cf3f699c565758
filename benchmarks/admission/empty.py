"""
The smallest possible webhook, as a measure of what Flask and gunicorn take by themselves: it reads a review and allows
it.
"""

from __future__ import annotations

from flask import Flask, Response, jsonify, request


def create_app() -> Flask:
    """An application that allows every review untouched."""
    app = Flask("empty")

    @app.post("/mutate")
    def mutate() -> Response:
        review = request.get_json()
        response = {"uid": review["request"]["uid"], "allowed": True}
        return jsonify(apiVersion="admission.k8s.io/v1", kind="AdmissionReview", response=response)

    return app
